use super::*;

fn int(i: i64) -> Value {
    Value::Int(i)
}

fn dec(text: &str, scale: u8) -> Value {
    parse_decimal(text, scale).unwrap()
}

#[test]
fn integers_overflow_loudly() {
    assert_eq!(binary(Binary::Add, &int(i64::MAX), &int(1)), Err(Fault::OVERFLOW));
    assert_eq!(binary(Binary::FloorDiv, &int(i64::MIN), &int(-1)), Err(Fault::OVERFLOW));
    assert_eq!(binary(Binary::Mod, &int(i64::MIN), &int(-1)), Ok(int(0)));
    assert_eq!(unary(&Unary::Neg, &int(i64::MIN)), Err(Fault::OVERFLOW));
    assert_eq!(unary(&Unary::Abs, &int(i64::MIN)), Err(Fault::OVERFLOW));
}

#[test]
fn integer_division_rounds_down() {
    for (a, b, quotient, rest) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1)] {
        assert_eq!(binary(Binary::FloorDiv, &int(a), &int(b)), Ok(int(quotient)));
        assert_eq!(binary(Binary::Mod, &int(a), &int(b)), Ok(int(rest)));
    }
    assert_eq!(binary(Binary::FloorDiv, &int(1), &int(0)), Err(Fault::DIVISION_BY_ZERO));
    assert_eq!(binary(Binary::Div, &int(1), &int(4)), Ok(Value::Float(0.25)));
}

#[test]
fn integer_quotients_are_rounded_once() {
    // Python gives these results.
    let cases = [
        (9_007_199_254_740_993, 1, 9_007_199_254_740_992.0),
        (i64::MAX, 3, 3.0744573456182584e18),
        (1, i64::MAX, 1.0842021724855044e-19),
        (-9_223_372_036_854_775_807, 9_223_372_036_854_775_805, -1.0),
        (9_007_199_254_740_993, 9_007_199_254_740_995, 0.9999999999999998),
    ];
    for (a, b, quotient) in cases {
        assert_eq!(binary(Binary::Div, &int(a), &int(b)), Ok(Value::Float(quotient)), "{a}/{b}");
    }
}

#[test]
fn float_remainders_have_the_divisors_sign() {
    let f = Value::Float;
    assert_eq!(binary(Binary::Mod, &f(-1.0), &f(3.0)), Ok(f(2.0)));
    assert_eq!(binary(Binary::FloorDiv, &f(-1.0), &f(3.0)), Ok(f(-1.0)));
    assert_eq!(binary(Binary::FloorDiv, &f(1.0), &f(0.1)), Ok(f(9.0)));
    assert_eq!(binary(Binary::Mod, &f(4.0), &f(-2.0)), Ok(f(-0.0)));
}

#[test]
fn decimals_are_exact_and_round_half_to_even() {
    assert_eq!(binary(Binary::Add, &dec("0.10", 2), &dec("0.205", 3)), Ok(dec("0.305", 3)));
    assert_eq!(binary(Binary::Mul, &dec("1.25", 2), &dec("1.1", 1)), Ok(dec("1.375", 3)));
    assert_eq!(rescale(125, 2, 1), Ok(Value::Decimal(12, 1)));
    assert_eq!(rescale(135, 2, 1), Ok(Value::Decimal(14, 1)));
    assert_eq!(rescale(-125, 2, 1), Ok(Value::Decimal(-12, 1)));
    assert_eq!(binary(Binary::DivScale(2), &int(2), &int(3)), Ok(dec("0.67", 2)));
    assert_eq!(binary(Binary::DivScale(0), &dec("-2.5", 1), &int(1)), Ok(dec("-2", 0)));
    assert_eq!(binary(Binary::Add, &Value::Decimal(i64::MAX, 2), &int(1)), Err(Fault::OVERFLOW));
    assert_eq!(cast(&Value::Float(2.675), &DataType::Decimal(2)), Ok(dec("2.67", 2)));
    assert_eq!(cast(&dec("-2.9", 1), &DataType::Int), Ok(int(-2)));
}

#[test]
fn decimal_text_is_never_rounded() {
    assert_eq!(parse_decimal("-12.5", 2), Ok(Value::Decimal(-1250, 2)));
    assert_eq!(parse_decimal(".5", 2), Ok(Value::Decimal(50, 2)));
    assert_eq!(parse_decimal("1.2300", 2), Ok(Value::Decimal(123, 2)));
    assert!(parse_decimal("1.234", 2).unwrap_err().contains("more than 2 digits"));
    for bad in ["", "-", ".", "1,5", "1e3", "abc", "1.2.3", "١"] {
        assert!(parse_decimal(bad, 2).is_err(), "{bad}");
    }
    assert!(parse_decimal("92233720368547758.08", 2).unwrap_err().contains("out of range"));
    assert_eq!(parse_decimal("-92233720368547758.08", 2), Ok(Value::Decimal(i64::MIN, 2)));
}

#[test]
fn decimals_of_any_size_are_exact_or_refused() {
    let read = |text: &str| parse_number(text, 2);
    assert_eq!(read("12.5e-1"), Ok(Value::Decimal(125, 2)));
    assert_eq!(read("-125E+1"), Ok(Value::Decimal(-125_000, 2)));
    assert_eq!(read(&format!("1.{}", "0".repeat(99))), Ok(Value::Decimal(100, 2)));
    assert_eq!(read(&format!("1{}e-99", "0".repeat(99))), Ok(Value::Decimal(100, 2)));
    assert_eq!(read("0e999999999999999999999"), Ok(Value::Decimal(0, 2)));
    for zeros in [1, 16, 17, 18, 35, 36, 37, 38, 39, 99] {
        let tiny = format!("1.{}1", "0".repeat(zeros + 1));
        assert!(read(&tiny).unwrap_err().contains("more than 2 digits"), "{tiny}");
        let huge = format!("1{}", "0".repeat(zeros + 16));
        assert!(read(&huge).unwrap_err().contains("out of range"), "{huge}");
    }
    for tiny in ["1e-3", "1e-19", "-1e-40", "1e-999999", "1e-99999999999999999999999"] {
        assert!(read(tiny).unwrap_err().contains("more than 2 digits"), "{tiny}");
    }
    assert!(read("1e99999999999999999999999").unwrap_err().contains("out of range"));
    for bad in ["1e", "e1", "1e1.5", "1e+", "--1e1", ".e1", "1e1e1"] {
        assert!(read(bad).unwrap_err().contains("not a decimal number"), "{bad}");
    }
    assert_eq!(parse_any_decimal("1.50"), Ok(Value::Decimal(150, 2)));
    assert_eq!(parse_any_decimal("1e3"), Ok(Value::Decimal(1000, 0)));
    let wide = format!("100.5{}", "0".repeat(30));
    assert_eq!(parse_any_decimal(&wide), Ok(Value::Decimal(1_005_000_000_000_000_000, 16)));
    assert!(parse_any_decimal("1e-19").unwrap_err().contains("more than 18 digits"));
}

#[test]
fn scales_are_changed_exactly() {
    for from in -20i8..=76 {
        for to in [0u8, 2, 18] {
            let rescale = Rescale::new(from, to);
            for units in [0i128, 1, -1, 10, 123_000, i128::from(i64::MAX), i128::MIN, i128::MAX] {
                let by_digits = rescale.by_digits(&units.to_string());
                assert_eq!(rescale.exactly(units), by_digits, "{units} from {from} to {to}");
            }
        }
    }
    assert_eq!(Rescale::new(30, 2).exactly(10i128.pow(30)), Ok(100));
    assert_eq!(Rescale::new(-3, 2).exactly(7), Ok(700_000));
    assert_eq!(
        Rescale::new(3, 2).message("-5", Inexact::Digits),
        "'-0.005' has more than 2 digits after the point"
    );
}

#[test]
fn what_comes_from_outside_loses_nothing() {
    let money = Column::new("m", DataType::Decimal(2));
    assert_eq!(convert(dec("1.500", 3), &money), Ok(dec("1.50", 2)));
    assert!(convert(dec("1.005", 3), &money).unwrap_err().contains("more than 2 digits"));
    assert!(convert(int(i64::MAX), &money).unwrap_err().contains("out of range"));
    let amounts = Column::new("l", DataType::List(Box::new(DataType::Decimal(2))));
    let list = |items: &[Value]| Value::List(items.into());
    assert_eq!(
        convert(list(&[int(1), Value::Null]), &amounts),
        Ok(list(&[dec("1", 2), Value::Null]))
    );
    assert!(convert(list(&[int(1), dec("1.005", 3)]), &amounts)
        .unwrap_err()
        .starts_with("item 1: "));
    let at = Column::new("at", DataType::Timestamp);
    assert_eq!(convert(int(5), &at), Ok(Value::Timestamp(5)));
    for far in [i64::MIN, i64::MAX, 253_402_300_800_000_000, -62_135_596_800_000_001] {
        assert!(convert(int(far), &at).unwrap_err().contains("years 1 to 9999"), "{far}");
    }
}

#[test]
fn null_equals_null_and_has_no_order_or_arithmetic() {
    let null = Value::Null;
    assert_eq!(binary(Binary::Eq, &null, &null), Ok(Value::Bool(true)));
    assert_eq!(binary(Binary::Eq, &null, &int(0)), Ok(Value::Bool(false)));
    assert_eq!(binary(Binary::Ne, &null, &int(0)), Ok(Value::Bool(true)));
    assert_eq!(binary(Binary::Lt, &null, &int(0)), Err(Fault::NULL));
    assert_eq!(binary(Binary::Add, &null, &int(0)), Err(Fault::NULL));
    assert_eq!(unary(&Unary::IsNull, &null), Ok(Value::Bool(true)));
    assert_eq!(unary(&Unary::Not, &null), Err(Fault::NULL));
}

#[test]
fn numbers_compare_by_value() {
    let big = (1i64 << 53) + 1;
    assert!(!equal(&int(big), &Value::Float(big as f64)));
    assert_eq!(compare(&int(big), &Value::Float(big as f64)), Ok(Some(Ordering::Greater)));
    assert_eq!(compare(&int(i64::MAX), &Value::Float(1e19)), Ok(Some(Ordering::Less)));
    assert_eq!(compare(&int(1), &Value::Float(f64::NAN)), Ok(None));
    assert!(equal(&dec("1.50", 2), &dec("1.5", 1)));
    assert!(equal(&dec("2.00", 2), &int(2)));
    assert!(equal(&Value::Float(0.0), &Value::Float(-0.0)));
    assert!(!equal(&Value::Float(f64::NAN), &Value::Float(f64::NAN)));
}

#[test]
fn strings_compare_by_code_point() {
    let less = |a: &str, b: &str| binary(Binary::Lt, &Value::str(a), &Value::str(b));
    assert_eq!(less("Z", "a"), Ok(Value::Bool(true)));
    assert_eq!(less("z", "é"), Ok(Value::Bool(true)));
    assert_eq!(less("\u{ffff}", "\u{10000}"), Ok(Value::Bool(true)));
}

#[test]
fn values_do_not_grow_without_end() {
    let mut text = Value::str("ab");
    let fault = loop {
        match binary(Binary::Add, &text, &text) {
            Ok(longer) => text = longer,
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.to_string(), "a value longer than 16 MiB");
    assert_eq!(text.heap_bytes(), VALUE_BYTES_MAX + 16);
    let mut list = Value::List(vec![int(1)].into());
    while let Ok(longer) = binary(Binary::Add, &list, &list) {
        list = longer;
    }
    assert!(list.heap_bytes() <= VALUE_BYTES_MAX);
}

#[test]
fn columns_refuse_what_they_cannot_hold() {
    let column = Column::new("n", DataType::Int);
    assert!(store(&Value::Null, &column).unwrap_err().to_string().contains("null in column 'n'"));
    assert!(store(&Value::Float(1.0), &column).is_err());
    let money = Column::new("m", DataType::Decimal(2));
    assert_eq!(store(&dec("1.005", 3), &money), Ok(dec("1.00", 2)));
    assert_eq!(store(&int(3), &money), Ok(dec("3.00", 2)));
    assert_eq!(store(&int(i64::MAX), &money), Err(Fault::OVERFLOW));
}

#[test]
fn every_pair_of_types_has_a_value_or_a_refusal() {
    // Whatever `binary_type` allows must compute or fault, with a value of the promised type.
    use DataType as T;
    let samples = [
        (T::Int, int(3)),
        (T::Float, Value::Float(1.5)),
        (T::Bool, Value::Bool(true)),
        (T::Str, Value::str("a")),
        (T::Bytes, Value::Bytes(vec![1].into())),
        (T::Timestamp, Value::Timestamp(5)),
        (T::Decimal(2), dec("1.50", 2)),
        (T::Decimal(0), dec("7", 0)),
        (T::List(Box::new(T::Int)), Value::List(vec![int(1)].into())),
        (T::Any, Value::Any(vec![1].into())),
    ];
    use Binary::*;
    let ops = [
        Add,
        Sub,
        Mul,
        Div,
        DivScale(3),
        FloorDiv,
        Mod,
        Min,
        Max,
        Eq,
        Ne,
        Lt,
        Le,
        Gt,
        Ge,
        And,
        Or,
        StartsWith,
        EndsWith,
        Contains,
    ];
    for op in ops {
        for (lt, l) in &samples {
            for (rt, r) in &samples {
                if let Ok(ty) = binary_type(op, lt, rt) {
                    let value =
                        binary(op, l, r).unwrap_or_else(|fault| panic!("{l} {op:?} {r}: {fault}"));
                    let column = Column::new("c", ty);
                    assert_eq!(store(&value, &column), Ok(value), "{l} {op:?} {r}");
                }
            }
        }
    }
}
