//! Columns have the values of single rows, for random expressions over random rows.

use proptest::prelude::*;
use tidemill_core::rules::{Binary, Unary};

use super::*;

/// The columns of the events: each type, with and without nulls.
fn schema() -> Schema {
    let types = [
        ("i", DataType::Int),
        ("f", DataType::Float),
        ("b", DataType::Bool),
        ("s", DataType::Str),
        ("y", DataType::Bytes),
        ("t", DataType::Timestamp),
        ("c", DataType::Decimal(2)),
        ("d", DataType::Decimal(4)),
        ("l", DataType::List(Box::new(DataType::Int))),
    ];
    let plain = types.iter().map(|(name, ty)| Column::new(name, ty.clone()));
    let nullable = types.iter().map(|(name, ty)| Column::new(&format!("{name}n"), ty.clone()));
    Schema::new(plain.chain(nullable.map(Column::nullable)).collect())
}

fn value(ty: &DataType) -> BoxedStrategy<Value> {
    let word = || {
        prop_oneof![
            -3i64..4,
            -3_000_000..3_000_000i64,
            prop_oneof![
                Just(i64::MIN),
                Just(i64::MIN + 1),
                Just(i64::MAX),
                Just((1 << 53) + 1),
                Just(i64::MAX / 100),
            ],
        ]
    };
    let float = prop_oneof![-3i32..4, Just(i32::MAX),];
    let special = prop_oneof![
        Just(f64::NAN),
        Just(f64::from_bits(0x7ff8_0000_0000_0001)),
        Just(-0.0),
        Just(f64::INFINITY),
        Just(9_223_372_036_854_775_808.0),
        Just(0.1),
    ];
    match ty {
        DataType::Int => word().prop_map(Value::Int).boxed(),
        DataType::Timestamp => word().prop_map(Value::Timestamp).boxed(),
        DataType::Decimal(scale) => {
            let scale = *scale;
            word().prop_map(move |units| Value::Decimal(units, scale)).boxed()
        }
        DataType::Float => {
            prop_oneof![float.prop_map(f64::from), special].prop_map(Value::Float).boxed()
        }
        DataType::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        DataType::Str => prop_oneof!["[aäB ]{0,3}", "-?[0-9]{1,3}(\\.[0-9])?"]
            .prop_map(|text| Value::str(&text))
            .boxed(),
        DataType::Bytes => {
            proptest::collection::vec(0u8..3, 0..3).prop_map(|b| Value::Bytes(b.into())).boxed()
        }
        DataType::List(inner) => proptest::collection::vec(value(inner), 0..3)
            .prop_map(|l| Value::List(l.into()))
            .boxed(),
        DataType::Any => Just(Value::Any([0xc0].into())).boxed(),
    }
}

fn rows() -> impl Strategy<Value = Vec<Vec<Value>>> {
    let columns = schema().columns;
    let row: Vec<BoxedStrategy<Value>> = columns
        .iter()
        .map(|column| match column.nullable {
            true => prop_oneof![1 => Just(Value::Null), 2 => value(&column.ty)].boxed(),
            false => value(&column.ty),
        })
        .collect();
    proptest::collection::vec(row, 0..20)
}

/// A step of building an expression. Operands are chosen among the nodes so far, whatever their
/// types are. A node without a type is left out.
#[derive(Clone, Debug)]
enum Build {
    Column(u16),
    Const(Value),
    Unary(Unary, prop::sample::Index),
    Binary(Binary, prop::sample::Index, prop::sample::Index),
    Where([prop::sample::Index; 3]),
    Coalesce(prop::sample::Index, prop::sample::Index),
}

fn build() -> impl Strategy<Value = Build> {
    let types = || {
        prop::sample::select(vec![
            DataType::Int,
            DataType::Float,
            DataType::Bool,
            DataType::Str,
            DataType::Timestamp,
            DataType::Decimal(2),
            DataType::Decimal(4),
        ])
    };
    let unary = prop_oneof![
        prop::sample::select(vec![
            Unary::Neg,
            Unary::Not,
            Unary::Abs,
            Unary::IsNull,
            Unary::Len,
            Unary::Lower,
            Unary::Upper,
            Unary::Strip,
        ]),
        types().prop_map(Unary::Cast),
    ];
    let binary = prop::sample::select(vec![
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::DivScale(3),
        Binary::FloorDiv,
        Binary::Mod,
        Binary::Min,
        Binary::Max,
        Binary::Eq,
        Binary::Ne,
        Binary::Lt,
        Binary::Le,
        Binary::Gt,
        Binary::Ge,
        Binary::And,
        Binary::Or,
        Binary::StartsWith,
        Binary::EndsWith,
        Binary::Contains,
    ]);
    let index = any::<prop::sample::Index>;
    let count = schema().columns.len() as u16;
    prop_oneof![
        3 => (0..count).prop_map(Build::Column),
        1 => types().prop_flat_map(|ty| value(&ty)).prop_map(Build::Const),
        1 => Just(Build::Const(Value::Null)),
        3 => (unary, index()).prop_map(|(op, x)| Build::Unary(op, x)),
        12 => (binary, index(), index()).prop_map(|(op, l, r)| Build::Binary(op, l, r)),
        2 => (index(), index(), index()).prop_map(|(c, a, b)| Build::Where([c, a, b])),
        2 => (index(), index()).prop_map(|(a, b)| Build::Coalesce(a, b)),
    ]
}

/// Builds the nodes that have a type, and returns their types.
fn built(steps: Vec<Build>) -> (Block, Vec<Type>) {
    let (schema, mut block) = (schema(), Block::default());
    for column in 0..schema.columns.len() as u16 {
        block.push(Expr::Column(column));
    }
    for step in steps {
        let nodes = block.nodes.len();
        let of = |index: prop::sample::Index| ExprId(index.index(nodes) as u32);
        let expr = match step {
            Build::Column(column) => Expr::Column(column),
            // JSON has no such constants, so the tracer makes them of bits.
            Build::Const(Value::Float(float)) => Expr::FloatBits(float.to_bits()),
            Build::Const(value) => Expr::Const(value),
            Build::Unary(op, x) => Expr::Unary(op, of(x)),
            Build::Binary(op, l, r) => Expr::Binary(op, of(l), of(r)),
            Build::Where([c, a, b]) => Expr::Where(of(c), of(a), of(b)),
            Build::Coalesce(a, b) => Expr::Coalesce(of(a), of(b)),
        };
        block.push(expr);
        if block.types(&schema, &[]).is_err() {
            block.nodes.pop();
        }
    }
    let types = block.types(&schema, &[]).expect("each node has a type");
    (block, types)
}

/// A value bit for bit: equality of values does not distinguish floats that are not numbers.
fn bits(value: &Value) -> Vec<u8> {
    let mut out = match value {
        Value::Float(float) => float.to_bits().to_be_bytes().to_vec(),
        _ => Vec::new(),
    };
    tidemill_core::encode::value(value, &mut out);
    out
}

/// Compares a stage by columns with the same stage row by row.
fn agrees(stage: &Stage, to: Schema, rows: &[Vec<Value>]) {
    let (from, to) = (Arc::new(schema()), Arc::new(to));
    let batch = Batch::from_rows(from.clone(), rows.iter().map(Vec::as_slice));
    let by_column = ColumnStage::new(stage, &from, to.clone()).expect("its nodes have types");
    let Some(Applied { keep, failed, mapped }) = by_column.apply(&batch) else {
        // Both branches of a choice are the constant null.
        return;
    };
    for (nth, row) in rows.iter().enumerate() {
        let expected = stage.apply(&to, row);
        assert_eq!(failed.contains(&nth), expected.is_err(), "{row:?}: {expected:?}");
        let kept = matches!(expected, Ok(Some(_)));
        assert_eq!(keep.value(nth), kept, "{row:?}: {expected:?}");
        if let (Ok(Some(expected)), Some(mapped)) = (&expected, &mapped) {
            let found = mapped.row(nth);
            let all = |row: &[Value]| row.iter().map(bits).collect::<Vec<_>>();
            assert_eq!(all(&found), all(expected), "{row:?}: {found:?}, {expected:?}");
        }
    }
}

fn cases() -> ProptestConfig {
    let named = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(named.unwrap_or(400))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn columns_have_the_values_of_rows(
        steps in proptest::collection::vec(build(), 1..40),
        nullable in any::<bool>(),
        rows in rows(),
    ) {
        let (exprs, types) = built(steps);
        // Each node is a column of its own map, so that a failed one does not hide the others.
        for (nth, Type { ty, .. }) in types.iter().enumerate() {
            let id = ExprId(nth as u32);
            let Some(ty) = ty else { continue };
            let column = Column { nullable, ..Column::new("x", ty.clone()) };
            let columns = vec![id];
            agrees(&Stage::Map { exprs: exprs.clone(), columns }, Schema::new(vec![column]), &rows);
            if *ty == DataType::Bool {
                agrees(&Stage::Filter { exprs: exprs.clone(), keep: id }, schema(), &rows);
            }
            // Some columns take values of other types.
            for other in [DataType::Float, DataType::Decimal(4)] {
                if *ty != other && ty.stores_in(&other) {
                    let column = Column { nullable, ..Column::new("x", other) };
                    let map = Stage::Map { exprs: exprs.clone(), columns: vec![id] };
                    agrees(&map, Schema::new(vec![column]), &rows);
                }
            }
        }
        // And all of them together.
        let typed = types.iter().enumerate().filter_map(|(nth, ty)| Some((nth, ty.ty.clone()?)));
        let (columns, of): (Vec<ExprId>, Vec<Column>) = typed
            .map(|(nth, ty)| {
                (ExprId(nth as u32), Column { nullable, ..Column::new(&format!("x{nth}"), ty) })
            })
            .unzip();
        agrees(&Stage::Map { exprs, columns }, Schema::new(of), &rows);
    }
}

#[test]
fn a_stage_whose_columns_are_too_large_is_applied_row_by_row() {
    let text = Column::new("s", DataType::Str);
    let from = Arc::new(Schema::new(vec![text.clone()]));
    let mut exprs = Block::default();
    let mut sum = exprs.push(Expr::Column(0));
    for _ in 0..14 {
        sum = exprs.push(Expr::Binary(Binary::Add, sum, sum));
    }
    let columns = vec![exprs.push(Expr::Unary(Unary::Len, sum))];
    let to = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
    let stage = ColumnStage::new(&Stage::Map { exprs, columns }, &from, to).unwrap();
    let rows = |n| {
        let row = [Value::str(&"x".repeat(1_000))];
        Batch::from_rows(from.clone(), std::iter::repeat_n(&row[..], n))
    };
    assert!(stage.apply(&rows(5)).is_none());
    let applied = stage.apply(&rows(1)).unwrap();
    assert!(applied.failed.is_empty());
    assert_eq!(applied.mapped.unwrap().row(0)[..], [Value::Int(1_000 << 14)]);
}
