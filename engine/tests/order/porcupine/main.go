// Checks recorded histories with porcupine, which knows nothing of how ours are checked: it searches for
// an order of all transactions that respects who was answered before whom was made, and in which each
// sees what it has seen.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type op struct {
	Key    int    `json:"key"`
	Append *int   `json:"append"`
	Read   *[]int `json:"read"`
}

type transaction struct {
	ID       int   `json:"id"`
	Made     int64 `json:"made"`
	Answered int64 `json:"answered"`
	Ops      []op  `json:"ops"`
}

// All lists, each as a text: a state is never changed.
type lists map[int]string

func text(list []int) string {
	var b strings.Builder
	for _, number := range list {
		b.WriteString(strconv.Itoa(number))
		b.WriteByte(' ')
	}
	return b.String()
}

func step(state, input, _ any) (bool, any) {
	next := lists{}
	for key, list := range state.(lists) {
		next[key] = list
	}
	for _, op := range input.([]op) {
		switch {
		case op.Append != nil:
			next[op.Key] += text([]int{*op.Append})
		case next[op.Key] != text(*op.Read):
			return false, state
		}
	}
	return true, next
}

func equal(a, b any) bool {
	one, other := a.(lists), b.(lists)
	if len(one) != len(other) {
		return false
	}
	for key, list := range one {
		if other[key] != list {
			return false
		}
	}
	return true
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var operations []porcupine.Operation
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var t transaction
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return nil, err
		}
		operations = append(operations, porcupine.Operation{
			ClientId: t.ID, Input: t.Ops, Call: t.Made, Return: t.Answered,
		})
	}
	return operations, lines.Err()
}

// Exchanges the first two numbers of some list that was read: no order explains that.
func spoil(operations []porcupine.Operation) bool {
	for at := len(operations) - 1; at >= 0; at-- {
		for _, op := range operations[at].Input.([]op) {
			if op.Read != nil && len(*op.Read) > 1 {
				list := *op.Read
				list[0], list[1] = list[1], list[0]
				return true
			}
		}
	}
	return false
}

func main() {
	model := porcupine.Model{
		Init:  func() any { return lists{} },
		Step:  step,
		Equal: equal,
	}
	failed := len(os.Args) < 2
	for _, path := range os.Args[1:] {
		operations, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, path, err)
			os.Exit(1)
		}
		result := porcupine.CheckOperationsTimeout(model, operations, time.Minute)
		fmt.Printf("%s: %d transactions: %s\n", path, len(operations), result)
		failed = failed || result != porcupine.Ok
		// What finds nothing wrong in anything would not help.
		if !spoil(operations) || porcupine.CheckOperationsTimeout(model, operations, time.Minute) == porcupine.Ok {
			fmt.Printf("%s: spoiled, and not found to be\n", path)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}
