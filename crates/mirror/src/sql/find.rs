//! What a look at every node of a statement finds.

use pg_query::protobuf::{self, Token};
use proxy::core::sql::walk;
use serde::Serialize;
use serde_json::Value;

use super::template::FIRST_HOLE;

/// A function that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its schema, if it is named.
    pub schema: Option<String>,
    /// Its name, in lower case.
    pub name: String,
    /// It has arguments.
    pub has_arguments: bool,
    /// It is an aggregate whose value is that of an order of values, whichever order rows have (`WITHIN GROUP`). In others rows may be
    /// equal by what they are ordered by.
    pub is_ordered: bool,
    /// It has a window.
    pub is_windowed: bool,
    /// Where in the text.
    pub location: usize,
    /// The first argument, if it is a constant text.
    pub first: Option<String>,
}

/// A relation that is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its schema, or nothing.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// It is said to be temporary.
    pub is_temporary: bool,
    /// The statement makes up something of this name (`WITH`), which may be meant: not within itself, for one.
    pub is_made_up: bool,
}

/// All that was found.
#[derive(Debug, Default, Clone)]
pub struct Found {
    /// Functions.
    pub calls: Vec<Call>,
    /// Relations.
    pub relations: Vec<Named>,
    /// Statements that write, anywhere.
    pub writes: usize,
    /// Why it is not determined which rows are meant, or what they look like.
    pub open: Option<&'static str>,
    /// There is a parameter of the client's, or a hole.
    pub has_parameters: bool,
    /// There is a query within.
    pub has_queries: bool,
    /// Where `CURRENT_TIMESTAMP` and the like are.
    pub value_functions: Vec<usize>,
    /// There is a `FOR UPDATE` or the like.
    pub locks_rows: bool,
    pub(super) made_up: Vec<String>,
}

/// Names that are different in every row, and on every member.
const SYSTEM_COLUMNS: &[&str] = &["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"];

/// Why `CURRENT_TIMESTAMP` and the like are not determined.
pub const USES_TIME: &str = "it uses the time or the user";

/// Why a cast to `regclass` and the like is not determined.
pub const NUMBER_OF_OBJECT: &str = "it uses the number of an object";

/// Words that are times when they are read as such.
const TIMES: &[&str] = &["now", "today", "tomorrow", "yesterday"];

/// True if a text may mean another time whenever it is read.
pub fn may_be_a_time(text: &str) -> bool {
    text.len() < 64 && names_a_time(text)
}

/// True if one of these words is in a text.
pub fn names_a_time(text: &str) -> bool {
    text.split(|letter: char| !letter.is_ascii_alphabetic())
        .any(|word| TIMES.iter().any(|time| word.eq_ignore_ascii_case(time)))
}

/// Looks at every node.
pub fn find(node: &impl Serialize) -> Found {
    let mut found = Found::default();
    walk(node, &mut |name, value| found.field(name, value));
    let made_up = std::mem::take(&mut found.made_up);
    for one in &mut found.relations {
        one.is_made_up = one.schema.is_empty() && made_up.contains(&one.name);
    }
    found
}

fn text_of(value: &Value) -> Option<&str> {
    value["node"]["String"]["sval"].as_str()
}

fn is_there(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

impl Found {
    fn field(&mut self, name: &str, value: &Value) {
        match name {
            "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" => self.writes += 1,
            "FuncCall" => self.call(value),
            "ctename" => self.made_up.extend(value.as_str().map(str::to_owned)),
            "SelectStmt" => self.query(value),
            "larg" | "rarg" if is_there(value) => self.query(value),
            "SubLink" => {
                self.has_queries = true;
                if value["sub_link_type"] == protobuf::SubLinkType::ArraySublink as i32 {
                    self.open("it makes an array of rows, and two databases need not have them in the same order");
                }
            }
            "JsonArrayAgg" | "JsonObjectAgg" | "JsonArrayQueryConstructor" => {
                self.open(
                    "it makes JSON of rows, and two databases need not have them in the same order",
                );
            }
            "ParamRef" => self.has_parameters = true,
            "SqlvalueFunction" => {
                let at = value["location"]
                    .as_u64()
                    .and_then(|at| usize::try_from(at).ok());
                self.value_functions.extend(at);
            }
            "RangeTableSample" => self.open("it takes a sample of rows"),
            "CurrentOfExpr" => self.open("it means the row of a cursor"),
            "ColumnRef" => {
                let fields = value["fields"].as_array();
                let last = fields.and_then(|fields| fields.last()).and_then(text_of);
                if last.is_some_and(|name| SYSTEM_COLUMNS.contains(&name)) {
                    self.open("it uses a system column");
                }
            }
            "Sval" if value["sval"].as_str().is_some_and(may_be_a_time) => {
                self.open("it has a text that may mean the time at which it is read");
            }
            "TypeName" | "type_name" => {
                let names = value["names"].as_array();
                let last = names.and_then(|names| names.last()).and_then(text_of);
                if last.is_some_and(|name| {
                    name.starts_with("reg") && name != "regconfig" && name != "regdictionary"
                }) {
                    self.open(NUMBER_OF_OBJECT);
                }
            }
            // Under whatever name a statement has it.
            _ if value["relname"].is_string() => self.relation(value),
            _ => {}
        }
    }

    /// It reads a view that does this.
    pub fn add_view(&mut self, view: Found) {
        let uses = (!view.value_functions.is_empty()).then_some(USES_TIME);
        if let Some(why) = view.open.or(uses) {
            self.open(why);
        }
        self.calls.extend(view.calls);
        let relations = view.relations.into_iter();
        // In a view's text all others have their schemas.
        self.relations
            .extend(relations.filter(|one| !one.is_made_up));
    }

    pub fn open(&mut self, why: &'static str) {
        self.open.get_or_insert(why);
    }

    fn query(&mut self, query: &Value) {
        if is_there(&query["limit_count"]) || is_there(&query["limit_offset"]) {
            self.open(
                "it takes some of the rows, and two databases need not have them in the same order",
            );
        }
        let distinct = query["distinct_clause"].as_array();
        if distinct.is_some_and(|on| on.iter().any(|item| is_there(&item["node"]))) {
            self.open("it takes one row of several");
        }
        if is_there(&query["locking_clause"]) {
            self.locks_rows = true;
            self.open("which rows it locks depends on who else runs");
        }
    }

    fn relation(&mut self, relation: &Value) {
        let text = |name: &str| relation[name].as_str().unwrap_or_default().to_owned();
        self.relations.push(Named {
            schema: text("schemaname"),
            name: text("relname"),
            is_temporary: relation["relpersistence"] == "t" || relation["schemaname"] == "pg_temp",
            is_made_up: false,
        });
    }

    fn call(&mut self, call: &Value) {
        let Some(path) = call["funcname"].as_array() else {
            return;
        };
        let names: Vec<&str> = path.iter().filter_map(text_of).collect();
        let Some(name) = names.last() else {
            return;
        };
        let location = call["location"].as_u64().unwrap_or_default();
        let mut first = &call["args"][0]["node"];
        while is_there(&first["TypeCast"]) {
            first = &first["TypeCast"]["arg"]["node"];
        }
        let first = first["AConst"]["val"]["Sval"]["sval"].as_str();
        self.calls.push(Call {
            schema: (names.len() > 1).then(|| names[names.len() - 2].to_owned()),
            name: name.to_ascii_lowercase(),
            has_arguments: is_there(&call["args"]),
            is_ordered: call["agg_within_group"] == true,
            is_windowed: is_there(&call["over"]),
            location: usize::try_from(location).unwrap_or(0),
            first: first.map(str::to_owned),
        });
    }
}

/// Where the call without arguments, or the like of `CURRENT_TIMESTAMP(3)`, ends that begins at `start`.
pub fn end_of_call(text: &str, start: usize) -> Option<usize> {
    let tokens = pg_query::scan(text).ok()?.tokens;
    let at = tokens
        .iter()
        .position(|token| usize::try_from(token.start) == Ok(start))?;
    let is = |at: usize, token: Token| tokens.get(at).is_some_and(|one| one.token == token as i32);
    let end = |at: usize| {
        tokens
            .get(at)
            .and_then(|token| usize::try_from(token.end).ok())
    };
    let mut at = at;
    while is(at + 1, Token::Ascii46) {
        at += 2;
    }
    if !is(at + 1, Token::Ascii40) {
        return end(at);
    }
    let close = (at + 2..tokens.len()).find(|at| is(*at, Token::Ascii41))?;
    end(close)
}

/// The text with holes in place of these stretches, which begin with hole `first`.
pub fn splice(text: &str, stretches: &[(usize, usize)], first: usize) -> String {
    let mut out = String::new();
    let mut at = 0;
    for (count, (start, end)) in stretches.iter().enumerate() {
        out.push_str(&text[at..*start]);
        out.push_str(&format!("${}", FIRST_HOLE + first + count));
        at = *end;
    }
    out.push_str(&text[at..]);
    out
}
