//! The app's interface as an OpenAPI document, for generators of clients and for people.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{json, Map, Value};
use tidemill_connect::values;
use tidemill_core::{Column, DataType, Schema};
use tidemill_engine::{App, Procedure};

use crate::access::Access;
use crate::call::{is_whole_reply, ID_BYTES_MAX};
use crate::refusal::{json_response, Refusal};
use crate::rows::{LIMIT, LIMIT_MAX};
use crate::shared::{Limits, Shared};

pub(crate) async fn openapi(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    shared.access.client(&headers)?;
    Ok(json_response(StatusCode::OK, shared.openapi.to_vec()))
}

/// Returns the document.
pub(crate) fn document(app: &dyn App, access: &Access, limits: &Limits) -> Value {
    let mut paths = Map::new();
    for procedure in app.procedures().values() {
        paths.insert(format!("/call/{}", procedure.name), called(procedure, access, limits));
    }
    for (name, schema) in app.streams().into_iter().filter(|(name, _)| !app.is_of_engine(name)) {
        let what = format!("streams/{name}");
        let about = format!("The events of {name}, as they become durable.");
        let from = json!({
            "name": "from", "in": "query", "description": "The number of the first row.",
            "schema": {"type": "integer", "minimum": 0},
        });
        let mut path = sent(&about, &row(&schema), vec![from, last_id()], access.role(&what));
        path["get"]["responses"]["410"] = refused("These rows are no longer retained.");
        path["get"]["responses"]["400"] = refused("These rows do not exist yet.");
        paths.insert(format!("/{what}"), path);
    }
    for table in app.tables() {
        let what = format!("tables/{}", table.name);
        let about = format!("The changes of {}, cut by cut, as they become durable.", table.name);
        let change = json!({
            "type": "object",
            "properties": {
                "epoch": {"type": "integer"},
                "changes": {"type": "array", "items": {
                    "type": "object",
                    "properties": {"key": {"type": "array"}, "row": or_null(row(&table.schema))},
                }},
            },
        });
        let path = sent(&about, &change, vec![last_id()], access.role(&what));
        paths.insert(format!("/{what}/changes"), path);
        let key = json!({
            "name": "key", "in": "query", "style": "form", "explode": true,
            "description": "A value for each key column, in their order; several keys follow each \
                            other. Without a key, the answer has rows in the order of their keys.",
            "schema": {"type": "array", "items": {"type": "string"}, "minItems": table.key.len()},
        });
        let after = json!({
            "name": "after", "in": "query", "style": "form", "explode": true,
            "description": "The key after which the rows begin.",
            "schema": {
                "type": "array", "items": {"type": "string"},
                "minItems": table.key.len(), "maxItems": table.key.len(),
            },
        });
        let limit = json!({
            "name": "limit", "in": "query", "description": "The most rows.",
            "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT},
        });
        let json = json!({
            "name": "json", "in": "query",
            "description": "Whether the values of keys are JSON, so that their types count.",
            "schema": {"type": "boolean"},
        });
        let found = json!({
            "type": "object",
            "properties": {
                "row": or_null(row(&table.schema)),
                "rows": {"type": "array", "items": or_null(row(&table.schema))},
                "more": {"type": "boolean"},
            },
        });
        paths.insert(
            format!("/{what}/rows"),
            guarded(
                json!({"get": {
                    "summary": format!("Rows of {}, as the last durable cut has left them.", table.name),
                    "parameters": [key, after, limit, json],
                    "responses": {
                        "200": answer(
                            "For one key 'row', which is null where there is none; for several \
                             keys 'rows', a row or null for each; for none 'rows' and 'more'.",
                            &found,
                        ),
                        "400": refused("This is not a key."),
                    },
                }}),
                access.role(&what),
            ),
        );
    }
    let health = json!({"type": "object", "properties": {"ready": {"type": "boolean"}}});
    paths.insert(
        "/health".into(),
        json!({"get": {
            "summary": "The health of the app.", "security": [],
            "responses": {
                "200": answer("It is.", &health),
                "400": refused("The request is wrong or ambiguous."),
                "503": answer("The app is not healthy.", &health),
            },
        }}),
    );
    paths.insert(
        "/metrics".into(),
        guarded(
            json!({"get": {
                "summary": "All counters, in the text format of Prometheus.",
                "responses": {"200": {"description": "Counters.", "content": {
                    "text/plain": {"schema": {"type": "string"}},
                }}},
            }}),
            None,
        ),
    );
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {"title": app.name(), "version": app.version().unwrap_or("0")},
        "paths": paths,
        "components": {"schemas": {"Refusal": refusal()}},
    });
    if access.wants_tokens() {
        document["components"]["securitySchemes"] =
            json!({"token": {"type": "http", "scheme": "bearer"}});
        document["security"] = json!([{"token": []}]);
    }
    document
}

fn called(procedure: &Procedure, access: &Access, limits: &Limits) -> Value {
    let mut parameters = vec![json!({
        "name": "Tidemill-Deadline-Ms", "in": "header",
        "description": "How long the client waits for the reply.",
        "schema": {"type": "integer", "minimum": 1, "default": limits.deadline.as_millis() as u64},
    })];
    if procedure.takes_requests {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header",
            "description": "Calls with the same id are executed once, and all receive its reply.",
            "schema": {"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX},
        }));
    }
    let reply = match (&procedure.reply_schema, &procedure.reply) {
        (Some(schema), _) => schema.clone(),
        (None, Some(schema)) if is_whole_reply(schema) => typed(&schema.columns[0]),
        (None, Some(schema)) => or_null(row(schema)),
        (None, None) => json!({"type": "null"}),
    };
    let returned = object([("reply", reply)], &["reply"]);
    let aborted = object([("aborted", json!({"type": "string"}))], &["aborted"]);
    let fault = object([("fault", json!({"type": "string"}))], &["fault"]);
    let asked = match procedure.caller {
        None => procedure.parameters.columns.clone(),
        Some(caller) => {
            let mut columns = procedure.parameters.columns.clone();
            columns.remove(caller);
            columns
        }
    };
    let needed: Vec<&str> = (asked.iter())
        .filter(|column| column.default.is_none() && !column.nullable)
        .map(|column| &*column.name)
        .collect();
    let mut body = object_of(&asked);
    (body["required"], body["additionalProperties"]) = (json!(needed), json!(false));
    let mut responses = json!({
        "200": answer("The call was executed.", &returned),
        "400": refused("The parameters, or a header, are wrong."),
        "408": refused("The body did not arrive in time."),
        "409": answer("The call aborted and changed nothing.", &aborted),
        "413": refused("The body is too large."),
        "415": refused("The body is not JSON."),
        "500": answer("The call's function failed and changed nothing.", &fault),
        "503": refused("The app is overloaded or stopping: try again later."),
        "504": refused("The reply is late: the call may still be executed."),
    });
    if procedure.takes_requests {
        responses["422"] = refused("The request id belongs to another call.");
    }
    let mut path = json!({"post": {
        "summary": format!("Calls {}.", procedure.name),
        "operationId": procedure.name,
        "parameters": parameters,
        "requestBody": {"required": true, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    }});
    if let Some(about) = &procedure.about {
        path["post"]["summary"] = json!(about.lines().next().unwrap_or_default());
        path["post"]["description"] = json!(about);
    }
    guarded(path, access.role(&procedure.name))
}

/// Returns a path of server-sent events.
fn sent(about: &str, data: &Value, parameters: Vec<Value>, role: Option<String>) -> Value {
    let about = format!("{about} Server-sent events, each of which is JSON.");
    guarded(
        json!({"get": {
            "summary": about,
            "parameters": parameters,
            "responses": {
                "200": {
                    "description": "An endless stream of events.",
                    "content": {"text/event-stream": {"schema": {"type": "string"}}},
                    "x-event": data,
                },
                "503": refused("The app is stopping: try again later."),
            },
        }}),
        role,
    )
}

fn last_id() -> Value {
    json!({
        "name": "Last-Event-ID", "in": "header",
        "description": "The id of the last event that the client received. Events after it follow.",
        "schema": {"type": "string"},
    })
}

/// Adds the refusals that unauthenticated clients receive.
fn guarded(mut path: Value, role: Option<String>) -> Value {
    for operation in path.as_object_mut().into_iter().flat_map(|path| path.values_mut()) {
        let responses = &mut operation["responses"];
        for (status, why) in [
            ("400", "The request is wrong or ambiguous."),
            ("503", "The app is overloaded or stopping: try again later."),
        ] {
            if responses[status].is_null() {
                responses[status] = refused(why);
            }
        }
        operation["responses"]["401"] = refused("A valid token is missing.");
        operation["responses"]["403"] = refused("The client lacks the role.");
        if let Some(role) = &role {
            operation["x-role"] = json!(role);
        }
    }
    path
}

fn answer(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn refused(description: &str) -> Value {
    answer(description, &json!({"$ref": "#/components/schemas/Refusal"}))
}

fn refusal() -> Value {
    let text = || json!({"type": "string"});
    let error = object([("kind", text()), ("what", text()), ("help", text())], &["kind", "what"]);
    object([("error", error)], &["error"])
}

fn object<const N: usize>(fields: [(&str, Value); N], required: &[&str]) -> Value {
    let fields: Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({"type": "object", "properties": fields, "required": required})
}

/// Returns the schema of a row as an object.
fn row(schema: &Schema) -> Value {
    object_of(&schema.columns)
}

fn object_of(columns: &[Column]) -> Value {
    let fields = columns.iter().map(|column| (column.name.to_string(), typed(column)));
    json!({"type": "object", "properties": fields.collect::<Map<String, Value>>()})
}

/// Returns the schema of a column's values.
fn typed(column: &Column) -> Value {
    let mut schema = of_type(&column.ty);
    if column.nullable {
        schema = or_null(schema);
    }
    if let Some(default) = &column.default {
        let mut text = Vec::new();
        values::write(default, &mut text);
        // This text is JSON.
        schema["default"] = serde_json::from_slice(&text).unwrap_or(Value::Null);
    }
    schema
}

fn of_type(ty: &DataType) -> Value {
    match ty {
        DataType::Int => json!({
            "type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX,
        }),
        DataType::Float => json!({"anyOf": [{"type": "number"}, {"enum": ["NaN", "inf", "-inf"]}]}),
        DataType::Bool => json!({"type": "boolean"}),
        DataType::Str => json!({"type": "string"}),
        DataType::Bytes => json!({"type": "string", "pattern": "^0x([0-9a-fA-F]{2})*$"}),
        DataType::Timestamp => json!({"type": "string", "format": "date-time"}),
        DataType::Decimal(scale) => {
            let digits = 18 - u32::from(*scale);
            let digits = digits.max(1);
            let behind = match scale {
                0 => String::new(),
                scale => format!("(\\.[0-9]{{1,{scale}}})?"),
            };
            json!({"type": "string", "pattern": format!("^-?[0-9]{{1,{digits}}}{behind}$")})
        }
        DataType::List(inner) => json!({"type": "array", "items": or_null(of_type(inner))}),
        DataType::Any => json!({}),
    }
}

fn or_null(schema: Value) -> Value {
    match schema.as_object().is_some_and(Map::is_empty) {
        true => schema,
        false => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}
