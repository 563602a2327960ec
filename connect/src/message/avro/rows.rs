//! Records as rows: the columns of fields, by each writer's schema.

use std::collections::HashMap;
use std::sync::Arc;

use super::read::{trailing, unknown, Reader};
use super::schema::{AvroSchema, Kind};
use super::{split, Asked, Schemas};
use crate::files::UnknownFields;
use crate::msgpack::DEPTH_MAX;
use crate::row::{Rule, Scratch, Slot};

/// The largest number of schemas that are held. When it is reached, all are asked for again.
const PLANS_MAX: usize = 1000;

/// Records whose fields are the columns.
pub(in crate::message) struct AvroRows {
    rules: Vec<Rule>,
    unknown: UnknownFields,
    schemas: Arc<dyn Schemas>,
    plans: HashMap<u32, Plan>,
    /// The last schema that was asked for, and why it is not available.
    refused: Option<(u32, String)>,
}

/// The plan by which messages of a schema become rows.
struct Plan {
    schema: Arc<AvroSchema>,
    /// The schema's records that a message may be, by their numbers.
    records: Vec<(usize, Record)>,
}

/// The column of each field that has one, or the reason why its messages are not rows.
type Record = Result<Vec<Option<usize>>, String>;

impl AvroRows {
    pub fn new(rules: Vec<Rule>, unknown: UnknownFields, schemas: Arc<dyn Schemas>) -> AvroRows {
        AvroRows { rules, unknown, schemas, plans: HashMap::new(), refused: None }
    }

    /// Whether everything needed to read a value is known. If not, this asks for it.
    pub fn is_ready(&mut self, value: &[u8]) -> bool {
        let Ok((id, _)) = split(value) else { return true };
        if self.plans.contains_key(&id) {
            return true;
        }
        match self.schemas.schema(id) {
            Asked::Later => return false,
            Asked::Refused(why) => self.refused = Some((id, why)),
            Asked::Found(schema) => {
                if self.plans.len() == PLANS_MAX {
                    self.plans.clear();
                }
                let plan = self.plan(schema);
                self.plans.insert(id, plan);
            }
        }
        true
    }

    fn plan(&self, schema: Arc<AvroSchema>) -> Plan {
        let root = schema.root();
        let among = match &schema.node(root).kind {
            Kind::Union(branches) => branches.clone(),
            _ => vec![root],
        };
        let records = among.into_iter().filter_map(|at| match &schema.node(at).kind {
            Kind::Record(fields) => {
                let names = fields.iter().map(|field| &*field.name);
                Some((at, self.record(names)))
            }
            _ => None,
        });
        let records = records.collect();
        Plan { schema, records }
    }

    fn record<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Record {
        let column = |name: &str| self.rules.iter().position(|rule| rule.field == name);
        if self.unknown == UnknownFields::Refuse {
            if let Some(name) = names.clone().find(|name| column(name).is_none()) {
                return Err(unknown(name));
            }
        }
        let columns: Vec<Option<usize>> = names.map(column).collect();
        let is_missing =
            |(at, rule): &(usize, &Rule)| !rule.optional && !columns.contains(&Some(*at));
        match self.rules.iter().enumerate().find(is_missing) {
            Some((_, rule)) => Err(format!("column '{}': the field is missing", rule.field)),
            None => Ok(columns),
        }
    }

    /// Appends a slot for each column.
    pub fn slots(&self, value: &[u8], scratch: &mut Scratch) -> Result<(), String> {
        let (id, record) = split(value)?;
        let Some(plan) = self.plans.get(&id) else {
            return Err(match &self.refused {
                Some((refused, why)) if *refused == id => why.clone(),
                _ => format!("the schema {id} is not known"),
            });
        };
        let mut reader = Reader::new(&plan.schema, record);
        let at = reader.branch(plan.schema.root())?;
        let kind = &plan.schema.node(at).kind;
        let record = plan.records.iter().find(|(record, _)| *record == at);
        let (Some((_, columns)), Kind::Record(fields)) = (record, kind) else {
            return Err(format!("the value is not a record, but {}", kind.name()));
        };
        let columns = columns.as_ref().map_err(Clone::clone)?;
        let begin = scratch.slots.len();
        scratch.slots.resize(begin + self.rules.len(), Slot::Default);
        for (field, column) in fields.iter().zip(columns) {
            match column {
                Some(column) => {
                    let rule = &self.rules[*column];
                    let slot = reader.slot(field.node, rule, scratch);
                    let slot = slot.map_err(|why| format!("column '{}': {why}", rule.field))?;
                    scratch.slots[begin + *column] = slot;
                }
                None => reader
                    .skip(field.node, DEPTH_MAX)
                    .map_err(|why| format!("field '{}': {why}", field.name))?,
            }
        }
        match reader.left() {
            0 => Ok(()),
            left => Err(trailing(left)),
        }
    }
}
