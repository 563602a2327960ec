//! Schemas of Avro, from their JSON.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::text::quoted;

/// The largest number of parts of a schema. Schemas that people write have some dozens.
const NODES_MAX: usize = 100_000;
/// The largest number of digits after the point of a decimal. Avro has no bound.
const SCALE_MAX: u64 = 10_000;

/// A schema, and all those that it refers to.
#[derive(Debug)]
pub struct AvroSchema {
    nodes: Vec<Node>,
    root: usize,
}

/// A part of a schema. Other parts refer to it by its number.
#[derive(Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub logical: Logical,
}

/// The type of the encoded value.
#[derive(Debug)]
pub(super) enum Kind {
    Null,
    Bool,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    Str,
    Fixed(usize),
    Enum(Vec<String>),
    Array(usize),
    Map(usize),
    Union(Vec<usize>),
    Record(Vec<Field>),
}

/// A field of a record.
#[derive(Debug)]
pub(super) struct Field {
    pub name: String,
    pub node: usize,
}

/// The logical type. As in Avro, a logical type that does not fit the encoded type is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logical {
    None,
    Date,
    Millis,
    Micros,
    Nanos,
    /// A decimal, with the digits after the point.
    Decimal(u32),
    Uuid,
    /// Tidemill's own: a value of msgpack, in bytes.
    Msgpack,
}

impl Kind {
    /// Returns the type in words, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Null => "null",
            Kind::Bool => "boolean",
            Kind::Int => "int",
            Kind::Long => "long",
            Kind::Float => "float",
            Kind::Double => "double",
            Kind::Bytes => "bytes",
            Kind::Str => "string",
            Kind::Fixed(_) => "fixed",
            Kind::Enum(_) => "enum",
            Kind::Array(_) => "array",
            Kind::Map(_) => "map",
            Kind::Union(_) => "union",
            Kind::Record(_) => "record",
        }
    }
}

impl AvroSchema {
    /// Parses a schema from JSON. Schemas that others refer to come first, and the actual one last.
    ///
    /// # Errors
    /// The reason why it is not a schema.
    pub fn parse(texts: &[&str]) -> Result<AvroSchema, String> {
        let mut parser = Parser::default();
        let mut root = None;
        for text in texts {
            let json = serde_json::from_str(text)
                .map_err(|e| format!("the schema is not JSON: {}", crate::json::why(&e)))?;
            root = Some(parser.node(&json, "")?);
        }
        let root = root.ok_or("there is no schema")?;
        let mut nodes = Vec::with_capacity(parser.nodes.len());
        for node in parser.nodes {
            nodes.push(node.ok_or("a part of the schema is without an end")?);
        }
        let schema = AvroSchema { nodes, root };
        match schema.nodes.iter().any(|node| schema.nests(node)) {
            true => Err("a union has a union in it".into()),
            false => Ok(schema),
        }
    }

    fn nests(&self, node: &Node) -> bool {
        let Kind::Union(branches) = &node.kind else { return false };
        branches.iter().any(|branch| matches!(self.nodes[*branch].kind, Kind::Union(_)))
    }

    /// Returns the number of the outermost part.
    pub(super) fn root(&self) -> usize {
        self.root
    }

    pub(super) fn node(&self, at: usize) -> &Node {
        &self.nodes[at]
    }
}

#[derive(Default)]
struct Parser {
    /// A part is absent while it is being read, because it may refer to itself.
    nodes: Vec<Option<Node>>,
    /// The numbers of the parts, by full name.
    named: HashMap<String, usize>,
}

impl Parser {
    fn add(&mut self, node: Option<Node>) -> Result<usize, String> {
        if self.nodes.len() == NODES_MAX {
            return Err(format!("the schema has more than {NODES_MAX} parts"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    fn node(&mut self, json: &Value, space: &str) -> Result<usize, String> {
        match json {
            Value::String(name) => match primitive(name) {
                Some(kind) => self.add(Some(Node { kind, logical: Logical::None })),
                None => self.by_name(name, space),
            },
            Value::Array(branches) => {
                let branches = branches.iter().map(|branch| self.node(branch, space));
                let branches = branches.collect::<Result<Vec<_>, _>>()?;
                self.add(Some(Node { kind: Kind::Union(branches), logical: Logical::None }))
            }
            Value::Object(object) => self.object(object, space),
            other => Err(format!("{} is no schema", quoted(&other.to_string()))),
        }
    }

    fn by_name(&self, name: &str, space: &str) -> Result<usize, String> {
        let within = full_name(name, space);
        let found = self.named.get(&within).or_else(|| self.named.get(name));
        found.copied().ok_or_else(|| format!("there is no type {}", quoted(name)))
    }

    fn object(&mut self, object: &Map<String, Value>, space: &str) -> Result<usize, String> {
        let ty = object.get("type").ok_or("a schema has no type")?;
        // Some writers wrap a type once more: {"type": {"type": "string"}}.
        let Value::String(ty) = ty else { return self.node(ty, space) };
        if let Some(kind) = primitive(ty) {
            let logical = logical(object, &kind);
            return self.add(Some(Node { kind, logical }));
        }
        let item = |name: &str| {
            object.get(name).ok_or_else(|| format!("a schema of type {ty} has no {name}"))
        };
        match &**ty {
            "array" => {
                let items = self.node(item("items")?, space)?;
                self.add(Some(Node { kind: Kind::Array(items), logical: Logical::None }))
            }
            "map" => {
                let values = self.node(item("values")?, space)?;
                self.add(Some(Node { kind: Kind::Map(values), logical: Logical::None }))
            }
            "record" | "error" | "enum" | "fixed" => self.named(object, ty, space),
            _ => self.by_name(ty, space),
        }
    }

    fn named(
        &mut self,
        object: &Map<String, Value>,
        ty: &str,
        space: &str,
    ) -> Result<usize, String> {
        let name = object.get("name").and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() {
            return Err(format!("a schema of type {ty} has no name"));
        }
        let space = object.get("namespace").and_then(Value::as_str).unwrap_or(space);
        let name = full_name(name, space);
        let space = name.rsplit_once('.').map_or("", |(space, _)| space).to_owned();
        let at = self.add(None)?;
        if self.named.insert(name.clone(), at).is_some() {
            return Err(format!("the type {} is there twice", quoted(&name)));
        }
        let list = |key: &str| {
            let list = object.get(key).and_then(Value::as_array);
            list.ok_or_else(|| format!("{ty} {} has no list of {key}", quoted(&name)))
        };
        let kind = match ty {
            "enum" => {
                let text = |symbol: &Value| symbol.as_str().map(str::to_owned);
                let symbols: Option<Vec<String>> = list("symbols")?.iter().map(text).collect();
                Kind::Enum(symbols.ok_or_else(|| {
                    format!("enum {} has a symbol that is no text", quoted(&name))
                })?)
            }
            "fixed" => {
                let size = object.get("size").and_then(Value::as_u64);
                let size = size.and_then(|size| usize::try_from(size).ok());
                Kind::Fixed(size.ok_or_else(|| format!("fixed {} has no size", quoted(&name)))?)
            }
            _ => Kind::Record(self.fields(list("fields")?, &name, &space)?),
        };
        let logical = logical(object, &kind);
        self.nodes[at] = Some(Node { kind, logical });
        Ok(at)
    }

    fn fields(&mut self, list: &[Value], record: &str, space: &str) -> Result<Vec<Field>, String> {
        let mut fields: Vec<Field> = Vec::with_capacity(list.len());
        for json in list {
            let name = json.get("name").and_then(Value::as_str);
            let (Some(name), Some(ty)) = (name, json.get("type")) else {
                return Err(format!("a field of {} has no name or no type", quoted(record)));
            };
            let node = self.node(ty, space)?;
            fields.push(Field { name: name.to_owned(), node });
        }
        let mut names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => Err(format!("{} has the field {} twice", quoted(record), quoted(two[0]))),
            None => Ok(fields),
        }
    }
}

fn full_name(name: &str, space: &str) -> String {
    match name.contains('.') || space.is_empty() {
        true => name.trim_start_matches('.').to_owned(),
        false => format!("{space}.{name}"),
    }
}

fn primitive(name: &str) -> Option<Kind> {
    Some(match name {
        "null" => Kind::Null,
        "boolean" => Kind::Bool,
        "int" => Kind::Int,
        "long" => Kind::Long,
        "float" => Kind::Float,
        "double" => Kind::Double,
        "bytes" => Kind::Bytes,
        "string" => Kind::Str,
        _ => return None,
    })
}

fn logical(object: &Map<String, Value>, kind: &Kind) -> Logical {
    let Some(name) = object.get("logicalType").and_then(Value::as_str) else {
        return Logical::None;
    };
    match (name, kind) {
        ("date", Kind::Int) => Logical::Date,
        ("timestamp-millis" | "local-timestamp-millis", Kind::Long) => Logical::Millis,
        ("timestamp-micros" | "local-timestamp-micros", Kind::Long) => Logical::Micros,
        ("timestamp-nanos" | "local-timestamp-nanos", Kind::Long) => Logical::Nanos,
        ("decimal", Kind::Bytes | Kind::Fixed(_)) => {
            let digits = |name: &str| object.get(name).map_or(Some(0), Value::as_u64);
            match (digits("precision"), digits("scale")) {
                (Some(precision), Some(scale)) if scale <= precision && scale <= SCALE_MAX => {
                    Logical::Decimal(scale as u32)
                }
                _ => Logical::None,
            }
        }
        ("uuid", Kind::Str | Kind::Fixed(16)) => Logical::Uuid,
        ("msgpack", Kind::Bytes) => Logical::Msgpack,
        _ => Logical::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_read() {
        let tree = r#"{"type": "record", "name": "a.b.Tree", "fields": [
            {"name": "left", "type": ["null", "Tree"]},
            {"name": "right", "type": ["null", "a.b.Tree"]},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["x", "y"]}},
            {"name": "again", "type": "Kind"},
            {"name": "wrapped", "type": {"type": {"type": "long", "logicalType": "timestamp-millis"}}}]}"#;
        let schema = AvroSchema::parse(&[tree]).unwrap();
        let Kind::Record(fields) = &schema.node(schema.root()).kind else { panic!("a record") };
        assert_eq!(fields[2].node, fields[3].node);
        assert_eq!(schema.node(fields[4].node).logical, Logical::Millis);
        for branches in [&fields[0], &fields[1]] {
            let Kind::Union(branches) = &schema.node(branches.node).kind else { panic!("a union") };
            assert_eq!(branches[1], schema.root());
        }
        // A type that is defined in another schema.
        let user =
            r#"{"type": "record", "name": "User", "fields": [{"name": "t", "type": "a.b.Tree"}]}"#;
        AvroSchema::parse(&[tree, user]).unwrap();
        assert!(AvroSchema::parse(&[user]).unwrap_err().contains("there is no type 'a.b.Tree'"));
    }

    #[test]
    fn what_is_none_is_refused() {
        let refused = |text: &str| AvroSchema::parse(&[text]).unwrap_err();
        assert!(refused("{").contains("not JSON"));
        assert!(refused("7").contains("no schema"));
        assert!(refused(r#"{"type": "array"}"#).contains("no items"));
        assert!(refused(r#"{"type": "record", "name": "r"}"#).contains("no list of fields"));
        assert!(refused(r#"{"type": "fixed", "name": "r"}"#).contains("no size"));
        assert!(refused(r#"["null", ["int", "long"]]"#).contains("union in it"));
        let twice = r#"{"type": "record", "name": "r", "fields": [
            {"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}"#;
        assert!(refused(twice).contains("twice"));
        assert!(
            refused(&"[".repeat(1000)).contains("not JSON"),
            "deep ones do not exhaust the stack"
        );
    }

    #[test]
    fn logical_types_that_do_not_fit_are_none() {
        let logical = |text: &str| {
            let schema = AvroSchema::parse(&[text]).unwrap();
            schema.node(schema.root()).logical
        };
        let decimal = r#"{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}"#;
        assert_eq!(logical(decimal), Logical::Decimal(2));
        assert_eq!(logical(&decimal.replace('9', "1")), Logical::None);
        assert_eq!(logical(r#"{"type": "string", "logicalType": "date"}"#), Logical::None);
    }
}
