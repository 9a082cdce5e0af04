//! Defaults: the few forms of expressions that configurations are made with, evaluated.

use std::collections::BTreeMap;
use std::time::Duration;

use syn::{BinOp, Expr, Lit, Member, Stmt, Type};

use super::attributes::{Options, renamed};
use super::source::{Found, Source, Sources, names};
use super::types;

/// Value of an expression.
#[derive(Clone)]
pub enum Value<'s> {
    /// Text.
    Text(String),
    /// Whole number.
    Number(i128),
    /// Number with a fraction, as it is written.
    Fraction(String),
    /// Truth value.
    Truth(bool),
    /// Bytes.
    Size(i128),
    /// Length of time.
    Time(Duration),
    /// List.
    List(Vec<Value<'s>>),
    /// `None`.
    Absent,
    /// Struct that this function `default` makes.
    Struct(Found<'s, syn::ImplItemFn>),
}

impl Value<'_> {
    /// The value as TOML writes it; none for `None`.
    ///
    /// # Errors
    /// If it is a whole struct.
    pub fn toml(&self) -> Result<Option<String>, String> {
        Ok(Some(match self {
            Value::Text(text) => format!("{text:?}"),
            Value::Number(number) => number.to_string(),
            Value::Fraction(number) => number.clone(),
            Value::Truth(truth) => truth.to_string(),
            Value::Size(bytes) => format!("\"{}\"", size(*bytes)),
            Value::Time(time) => format!("\"{}\"", span(*time)),
            Value::List(items) => {
                let items: Result<Vec<_>, String> = items.iter().map(Value::toml).collect();
                let items: Vec<String> = items?.into_iter().flatten().collect();
                format!("[{}]", items.join(", "))
            }
            Value::Absent => return Ok(None),
            Value::Struct(_) => return Err("the default is a struct".to_owned()),
        }))
    }
}

/// Bytes in the largest unit that leaves no rest.
pub fn size(bytes: i128) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let fitting = units
        .iter()
        .find(|(_, unit)| bytes >= *unit && bytes % unit == 0);
    let (name, unit) = fitting.unwrap_or(&("B", 1));
    format!("{}{name}", bytes / unit)
}

/// A length of time in the largest unit that leaves no rest.
pub fn span(time: Duration) -> String {
    let millis = time.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ];
    let fitting = units
        .iter()
        .find(|(_, unit)| millis.is_multiple_of(*unit) && millis >= *unit);
    match (fitting, millis) {
        (_, 0) => "0s".to_owned(),
        (Some((name, unit)), _) => format!("{}{name}", millis / unit),
        (None, _) => format!("{millis}ms"),
    }
}

type Lets<'s> = BTreeMap<String, &'s Expr>;

/// Evaluator of expressions.
#[derive(Clone, Copy)]
pub struct Evaluator<'s> {
    /// Sources, for what an expression names.
    pub sources: &'s Sources<'s>,
}

impl<'s> Evaluator<'s> {
    /// Value that the function of a field's `default = "..."` returns.
    ///
    /// # Errors
    /// If the function is not there, or its expression is none that tidy knows.
    pub fn call(&self, from: &'s Source<'s>, function: &str) -> Result<Value<'s>, String> {
        let path: Vec<String> = function.split("::").map(str::to_owned).collect();
        let found = self.sources.function(from, &path);
        let found = found.ok_or_else(|| format!("{}: no function {function}", from.path()))?;
        let (lets, last) = block(&found.item.block);
        let last = last.ok_or_else(|| format!("{function} returns nothing"))?;
        let value = self.value(found.at, &lets, last);
        value.map_err(|error| format!("{function}: {error}"))
    }

    /// Value of a field in what the function `default` of its struct makes.
    ///
    /// # Errors
    /// If the function has no such literal, or the expression is none that tidy knows.
    pub fn field(
        &self,
        default: Found<'s, syn::ImplItemFn>,
        field: &str,
    ) -> Result<Value<'s>, String> {
        let (lets, last) = block(&default.item.block);
        let Some(Expr::Struct(literal)) = last else {
            return Err(format!("{}: the default is no literal", default.at.path()));
        };
        let mut fields = literal.fields.iter();
        let found =
            fields.find(|value| matches!(&value.member, Member::Named(name) if name == field));
        let found = found.ok_or_else(|| format!("{}: no default of {field}", default.at.path()))?;
        let value = self.value(default.at, &lets, &found.expr);
        value.map_err(|error| format!("{field}: {error}"))
    }

    /// Value of a type that derives its default.
    ///
    /// # Errors
    /// If the type is none that tidy knows.
    pub fn of_type(&self, from: &'s Source<'s>, of: &Type) -> Result<Value<'s>, String> {
        if types::bare(of).is_optional {
            return Ok(Value::Absent);
        }
        let path = types::path(of).unwrap_or_default();
        Ok(match path.last().map(String::as_str).unwrap_or_default() {
            "bool" => Value::Truth(false),
            "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => Value::Number(0),
            "f64" => Value::Fraction("0.0".to_owned()),
            "String" | "PathBuf" => Value::Text(String::new()),
            "Duration" => Value::Time(Duration::ZERO),
            "Vec" => Value::List(Vec::new()),
            "BTreeMap" => Value::Absent,
            last => {
                let found = self.sources.enumeration(from, &path);
                let found =
                    found.ok_or_else(|| format!("{}: no default of {last}", from.path()))?;
                default_variant(found.item)?
            }
        })
    }

    fn value(
        &self,
        at: &'s Source<'s>,
        lets: &Lets<'s>,
        of: &'s Expr,
    ) -> Result<Value<'s>, String> {
        let inner = |of: &'s Expr| self.value(at, lets, of);
        match of {
            Expr::Lit(literal) => self::literal(&literal.lit),
            Expr::Paren(paren) => inner(&paren.expr),
            Expr::Reference(reference) => inner(&reference.expr),
            Expr::Array(array) => {
                let items: Result<Vec<_>, String> = array.elems.iter().map(inner).collect();
                Ok(Value::List(items?))
            }
            Expr::Macro(list) if list.mac.path.is_ident("vec") => self.list(&list.mac),
            Expr::Binary(binary) => {
                arithmetic(&inner(&binary.left)?, &binary.op, &inner(&binary.right)?)
            }
            Expr::Tuple(tuple) => socket(
                &tuple
                    .elems
                    .iter()
                    .map(inner)
                    .collect::<Result<Vec<_>, _>>()?,
            ),
            Expr::Struct(literal) => address(
                &literal
                    .fields
                    .iter()
                    .map(|field| inner(&field.expr))
                    .collect::<Result<Vec<_>, _>>()?,
            ),
            Expr::MethodCall(call) => match call.method.to_string().as_str() {
                "into" | "to_owned" | "to_string" | "to_vec" | "map" | "clone" => {
                    inner(&call.receiver)
                }
                other => Err(unknown(at, &format!(".{other}()"))),
            },
            Expr::Field(field) => self.member(at, &inner(&field.base)?, &field.member),
            Expr::Call(call) => self.called(at, lets, call),
            Expr::Path(path) => self.named(at, lets, &names(&path.path)),
            _ => Err(unknown(at, "an expression")),
        }
    }

    fn list(&self, list: &syn::Macro) -> Result<Value<'s>, String> {
        let parse = syn::punctuated::Punctuated::<Expr, syn::Token![,]>::parse_terminated;
        let items = list
            .parse_body_with(parse)
            .map_err(|error| error.to_string())?;
        let texts = items.iter().map(|item| match item {
            Expr::Lit(lit) => literal(&lit.lit),
            Expr::MethodCall(call) => match &*call.receiver {
                Expr::Lit(lit) => literal(&lit.lit),
                _ => Err("vec![] of something".to_owned()),
            },
            _ => Err("vec![] of something".to_owned()),
        });
        Ok(Value::List(texts.collect::<Result<Vec<_>, _>>()?))
    }

    fn member(
        &self,
        at: &'s Source<'s>,
        base: &Value<'s>,
        member: &Member,
    ) -> Result<Value<'s>, String> {
        match (base, member) {
            (Value::Struct(default), Member::Named(name)) => {
                self.field(*default, &name.to_string())
            }
            _ => Err(unknown(at, "a field of something")),
        }
    }

    fn called(
        &self,
        at: &'s Source<'s>,
        lets: &Lets<'s>,
        call: &'s syn::ExprCall,
    ) -> Result<Value<'s>, String> {
        let Expr::Path(function) = &*call.func else {
            return Err(unknown(at, "a call"));
        };
        let path = names(&function.path);
        let arguments = call
            .args
            .iter()
            .map(|argument| self.value(at, lets, argument));
        let arguments: Vec<Value<'s>> = arguments.collect::<Result<_, _>>()?;
        let ends: Vec<&str> = path
            .iter()
            .rev()
            .take(2)
            .rev()
            .map(String::as_str)
            .collect();
        Ok(match (ends.as_slice(), arguments.as_slice()) {
            (["Duration", unit], [Value::Number(number)]) => Value::Time(duration(unit, *number)?),
            (["ByteSize", "mib"], [Value::Number(number)]) => Value::Size(number << 20),
            ([.., "ByteSize"], [Value::Number(bytes)]) => Value::Size(*bytes),
            ([.., "Some"], [value]) | (["String" | "PathBuf", "from"], [value]) => value.clone(),
            (["String", "new"], []) => Value::Text(String::new()),
            (["Vec", "new"], []) => Value::List(Vec::new()),
            ([_, "default"], []) => {
                let found = self.sources.default_of(at, &path[..path.len() - 1]);
                Value::Struct(found.ok_or_else(|| unknown(at, &path.join("::")))?)
            }
            (_, []) => self.call(at, &path.join("::"))?,
            _ => return Err(unknown(at, &path.join("::"))),
        })
    }

    fn named(
        &self,
        at: &'s Source<'s>,
        lets: &Lets<'s>,
        path: &[String],
    ) -> Result<Value<'s>, String> {
        let joined = path.join("::");
        match (joined.as_str(), lets.get(&joined)) {
            (_, Some(bound)) => return self.value(at, lets, bound),
            ("None", _) => return Ok(Value::Absent),
            ("Duration::ZERO", _) => return Ok(Value::Time(Duration::ZERO)),
            _ => {}
        }
        if let Some(found) = self.sources.constant(at, path) {
            return self.value(found.at, &Lets::new(), found.item);
        }
        let (last, before) = path.split_last().ok_or_else(|| unknown(at, "a path"))?;
        let found = self.sources.enumeration(at, before);
        let found = found.ok_or_else(|| unknown(at, &joined))?;
        let options = Options::of(&found.item.attrs, "serde")?;
        Ok(Value::Text(renamed(last, options.value("rename_all"))))
    }
}

fn unknown(at: &Source<'_>, what: &str) -> String {
    format!(
        "{}: tidy cannot tell a default that is made with {what}",
        at.path()
    )
}

/// The bindings of a block, and its last expression.
fn block(of: &syn::Block) -> (Lets<'_>, Option<&Expr>) {
    let mut lets = Lets::new();
    let mut last = None;
    for statement in &of.stmts {
        match statement {
            Stmt::Local(local) => {
                if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
                    lets.insert(name.ident.to_string(), &*init.expr);
                }
            }
            Stmt::Expr(expression, None) => last = Some(expression),
            _ => {}
        }
    }
    (lets, last)
}

fn literal<'s>(of: &Lit) -> Result<Value<'s>, String> {
    match of {
        Lit::Str(text) => Ok(Value::Text(text.value())),
        Lit::Bool(truth) => Ok(Value::Truth(truth.value)),
        Lit::Float(number) => Ok(Value::Fraction(number.base10_digits().to_owned())),
        Lit::Int(number) => {
            let number = number.base10_parse().map_err(|error| error.to_string())?;
            Ok(Value::Number(number))
        }
        _ => Err("a literal that no configuration has".to_owned()),
    }
}

fn arithmetic<'s>(
    left: &Value<'s>,
    operator: &BinOp,
    right: &Value<'s>,
) -> Result<Value<'s>, String> {
    let (Value::Number(left), Value::Number(right)) = (left, right) else {
        return Err("arithmetic with other things than numbers".to_owned());
    };
    Ok(Value::Number(match operator {
        BinOp::Mul(_) => left * right,
        BinOp::Add(_) => left + right,
        BinOp::Sub(_) => left - right,
        BinOp::Shl(_) => left << right,
        _ => return Err("an operator that tidy does not know".to_owned()),
    }))
}

fn duration(unit: &str, number: i128) -> Result<Duration, String> {
    let number = u64::try_from(number).map_err(|error| error.to_string())?;
    match unit {
        "from_secs" => Ok(Duration::from_secs(number)),
        "from_millis" => Ok(Duration::from_millis(number)),
        "from_micros" => Ok(Duration::from_micros(number)),
        _ => Err(format!("Duration::{unit}")),
    }
}

/// `([127, 0, 0, 1], 80)`, an address and a port.
fn socket<'s>(parts: &[Value<'s>]) -> Result<Value<'s>, String> {
    let [Value::List(bytes), Value::Number(port)] = parts else {
        return Err("a tuple that is no address".to_owned());
    };
    let bytes: Vec<String> = bytes
        .iter()
        .map(Value::toml)
        .filter_map(Result::ok)
        .flatten()
        .collect();
    Ok(Value::Text(format!("{}:{port}", bytes.join("."))))
}

/// `Address::Tcp { host, port }`.
fn address<'s>(parts: &[Value<'s>]) -> Result<Value<'s>, String> {
    match parts {
        [Value::Text(host), Value::Number(port)] => Ok(Value::Text(format!("{host}:{port}"))),
        _ => Err("a struct that is no address".to_owned()),
    }
}

fn default_variant<'s>(of: &syn::ItemEnum) -> Result<Value<'s>, String> {
    let is_default = |variant: &&syn::Variant| {
        let mut attributes = variant.attrs.iter();
        attributes.any(|attribute| attribute.path().is_ident("default"))
    };
    let variant = of.variants.iter().find(is_default);
    let variant = variant.ok_or_else(|| format!("{} has no default", of.ident))?;
    let options = Options::of(&of.attrs, "serde")?;
    types::variant_name(variant, &options).map(Value::Text)
}
