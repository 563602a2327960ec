//! Filters: comparisons of a column with a value, joined with `and` and `or`. They are computed
//! like a program's expressions.

use tidemill_connect::values;
use tidemill_core::rules::{self, Binary};
use tidemill_core::{Column, DataType, Error, Result, Schema, Value};
use tidemill_txn::program::{evaluate, Block, Expr, ExprId};

/// The most comparisons of a filter.
const COMPARISONS_MAX: usize = 64;

/// A filter on the rows of a schema.
#[derive(Debug)]
pub(crate) struct Filter {
    block: Block,
    /// The alternatives, each of which is comparisons that hold together.
    alternatives: Vec<Vec<ExprId>>,
}

#[derive(Debug, PartialEq)]
enum Token<'a> {
    /// A name, a number or `true`: text without quotes.
    Word(&'a str),
    Quoted(String),
    Op(Binary),
}

fn wrong(what: impl Into<String>) -> Error {
    Error::input(what).help("write for example: balance >= 10.5 and name = 'Ann' or id = 7")
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let used = match first {
            '\'' | '"' => {
                let end = rest[1..].find(first);
                let end = end.ok_or_else(|| {
                    wrong(format!("the text {rest} in the filter has no closing quote"))
                })?;
                tokens.push(Token::Quoted(rest[1..=end].to_owned()));
                end + 2
            }
            '=' | '!' | '<' | '>' => {
                let ops = [
                    ("==", Binary::Eq),
                    ("!=", Binary::Ne),
                    ("<=", Binary::Le),
                    (">=", Binary::Ge),
                    ("=", Binary::Eq),
                    ("<", Binary::Lt),
                    (">", Binary::Gt),
                ];
                let op = ops.iter().find(|(symbol, _)| rest.starts_with(symbol));
                let (symbol, op) = op.ok_or_else(|| wrong("the filter has a lone '!'"))?;
                tokens.push(Token::Op(*op));
                symbol.len()
            }
            _ => {
                let is_end = |c: char| c.is_whitespace() || "'\"=!<>".contains(c);
                let end = rest.find(is_end).unwrap_or(rest.len());
                tokens.push(Token::Word(&rest[..end]));
                end
            }
        };
        rest = rest[used..].trim_start();
    }
    Ok(tokens)
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// When the text is not a filter, names an unknown column, or compares values that can't be
    /// compared.
    pub(crate) fn parse(text: &str, schema: &Schema) -> Result<Filter> {
        let tokens = tokens(text)?;
        let mut filter = Filter { block: Block::default(), alternatives: Vec::new() };
        let is = |token: &Token<'_>, word: &str| matches!(token, Token::Word(w) if w.eq_ignore_ascii_case(word));
        let mut count = 0;
        for alternative in tokens.split(|token| is(token, "or")) {
            let mut together = Vec::new();
            for part in alternative.split(|token| is(token, "and")) {
                together.push(filter.comparison(text, part, schema)?);
                count += 1;
                if count > COMPARISONS_MAX {
                    return Err(wrong(format!(
                        "a filter has at most {COMPARISONS_MAX} comparisons"
                    )));
                }
            }
            filter.alternatives.push(together);
        }
        filter.block.types(schema, &[]).map_err(|e| wrong(e.what))?;
        Ok(filter)
    }

    /// Adds one comparison of the filter `text`.
    fn comparison(&mut self, text: &str, part: &[Token<'_>], schema: &Schema) -> Result<ExprId> {
        let [Token::Word(column), Token::Op(op), value] = part else {
            return Err(wrong(format!("'{text}' is not a filter")));
        };
        let index = schema.find("the table", column).map_err(|mut e| {
            e.kind = tidemill_core::Kind::Input;
            e
        })?;
        let value = literal(value, &schema.columns[index])?;
        let column = self.block.push(Expr::Column(index as u16));
        let value = self.block.push(match value {
            Value::Float(f) => Expr::FloatBits(f.to_bits()),
            value => Expr::Const(value),
        });
        Ok(self.block.push(Expr::Binary(*op, column, value)))
    }

    /// Whether the filter accepts a row. A comparison without a value does not hold.
    pub(crate) fn keeps(&self, row: &[Value]) -> bool {
        let holds = |id: &ExprId| evaluate(&self.block, *id, row) == Ok(Value::Bool(true));
        self.alternatives.iter().any(|together| together.iter().all(holds))
    }
}

/// Parses a value that a column is compared with.
fn literal(token: &Token<'_>, column: &Column) -> Result<Value> {
    let refuse = |why: String| wrong(format!("column '{}' is {}: {why}", column.name, column.ty));
    match token {
        Token::Quoted(text) => match column.ty {
            DataType::Str => Ok(Value::str(text)),
            _ => {
                let json = serde_json::Value::from(text.as_str()).to_string();
                values::read(&json, column).map_err(refuse)
            }
        },
        Token::Word("null") => Ok(Value::Null),
        Token::Word("true") => Ok(Value::Bool(true)),
        Token::Word("false") => Ok(Value::Bool(false)),
        Token::Word(word) => {
            let numbers = word.strip_prefix(['-', '+']).unwrap_or(word);
            let is_number = numbers.starts_with(|c: char| c.is_ascii_digit() || c == '.');
            if !is_number {
                return Err(refuse(format!("'{word}' is not a value; put text in quotes")));
            }
            if let Ok(int) = word.parse() {
                return Ok(match column.ty {
                    DataType::Timestamp => Value::Timestamp(int),
                    _ => Value::Int(int),
                });
            }
            let float = || word.parse().map(Value::Float).map_err(|e| refuse(format!("{e}")));
            match column.ty {
                // All digits are parsed, so nothing is rounded.
                DataType::Decimal(_) => rules::parse_any_decimal(word).map_err(refuse),
                _ => float(),
            }
        }
        Token::Op(_) => Err(wrong("the filter has an operator where a value should be")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::new(vec![
            Column::new("id", DataType::Int),
            Column::new("name", DataType::Str).nullable(),
            Column::new("price", DataType::Decimal(2)),
            Column::new("at", DataType::Timestamp),
            Column::new("x", DataType::Float),
        ])
    }

    #[test]
    fn rows_are_kept_by_the_rules_of_values() {
        let row = |name: Value| {
            let at = Value::Timestamp(1_000_000);
            [Value::Int(7), name, Value::Decimal(1250, 2), at, Value::Float(0.5)]
        };
        let (ann, nobody) = (row(Value::str("Ann")), row(Value::Null));
        let keeps = |text: &str| {
            let filter = Filter::parse(text, &schema()).unwrap_or_else(|e| panic!("{text}: {e}"));
            (filter.keeps(&ann), filter.keeps(&nobody))
        };
        for text in [
            "id = 7",
            "id == 7",
            "id>=7 and id<=7",
            "id != 8",
            "price = 12.5",
            "price < 12.501",
            "price > 12499e-3",
            "price > 12",
            "at = '1970-01-01T00:00:01Z'",
            "at < 1000001",
            "x = 0.5",
            "x < 1",
            "id < 7.5 AND x > -1",
            "id = 8 or id = 7",
            "id = 8 or id = 7 and x = 0.5",
            "id = 7 OR id = 8 and x = 1",
        ] {
            assert_eq!(keeps(text), (true, true), "{text}");
        }
        for text in ["id = 8", "price = 12.501", "id > 7 and x = 0.5", "id = 8 or id = 9 or x > 1"]
        {
            assert_eq!(keeps(text), (false, false), "{text}");
        }
        assert_eq!(keeps("name = 'Ann'"), (true, false));
        assert_eq!(keeps("name = null"), (false, true));
        assert_eq!(keeps("name != \"Ann\""), (false, true));
        assert_eq!(keeps("name >= 'A'"), (true, false), "null has no order");
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in [
            "",
            "and",
            "id",
            "id =",
            "= 7",
            "id = 7 and",
            "id = 7 or",
            "or id = 8",
            "(id = 7 or id = 8) and x = 0.5",
            "nam = 'x'",
            "id = 'seven'",
            "id = seven",
            "name = 7",
            "name = 'Ann",
            "id ! 7",
            "id = = 7",
            "price = 1.5e400x",
            "at = 'yesterday'",
            "id < null",
            "'id' = 7",
            "id = 7 id = 7",
            "x = -",
            "é = 'ü",
        ] {
            let error = Filter::parse(text, &schema()).map(|_| ()).unwrap_err();
            assert_eq!(error.kind, tidemill_core::Kind::Input, "{text}: {error}");
        }
        let many = vec!["id = 7"; 65].join(" and ");
        assert!(Filter::parse(&many, &schema()).is_err());
    }
}
