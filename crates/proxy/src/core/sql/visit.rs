//! A look at every part of a statement's tree, without another tree in between.
//!
//! The nodes of the parser can be serialized: this is a serializer that writes nothing and tells what it passes. Invariant:
//! every field of every node is passed once, outer ones first.

use std::fmt::{self, Display};

use serde::Serialize;
use serde::ser::{
    Error as _, Impossible, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
    Serializer,
};

/// Hears of what is passed.
pub trait Visitor {
    /// A node begins, by the name of its type.
    fn open(&mut self, node: &'static str);
    /// The next field of the node that began last.
    fn field(&mut self, name: &'static str);
    /// The next item of a list in that field.
    fn item(&mut self, at: usize);
    /// A text in that field.
    fn text(&mut self, value: &str);
    /// A truth value or a number in that field.
    fn number(&mut self, value: i64);
    /// The node that began last is over.
    fn close(&mut self);
}

/// Passes all of `node`.
pub fn visit(node: &impl Serialize, visitor: &mut impl Visitor) {
    // A visitor does not fail, and a node has nothing that cannot be passed.
    let _ = node.serialize(Passing(visitor));
}

/// Something in a tree that no node of the parser has.
#[derive(Debug)]
pub struct Unknown;

impl Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no part of a statement's tree")
    }
}

impl std::error::Error for Unknown {}

impl serde::ser::Error for Unknown {
    fn custom<T: Display>(_: T) -> Unknown {
        Unknown
    }
}

struct Passing<'a, V>(&'a mut V);

macro_rules! numbers {
    ($($name:ident: $type:ty),*) => {
        $(fn $name(self, value: $type) -> Result<(), Unknown> {
            self.0.number(i64::from(value));
            Ok(())
        })*
    };
}

impl<'a, V: Visitor> Serializer for Passing<'a, V> {
    type Ok = ();
    type Error = Unknown;
    type SerializeSeq = Items<'a, V>;
    type SerializeTuple = Items<'a, V>;
    type SerializeTupleStruct = Items<'a, V>;
    type SerializeTupleVariant = Impossible<(), Unknown>;
    type SerializeMap = Impossible<(), Unknown>;
    type SerializeStruct = Fields<'a, V>;
    type SerializeStructVariant = Impossible<(), Unknown>;

    numbers!(serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32);

    fn serialize_u64(self, value: u64) -> Result<(), Unknown> {
        self.0.number(i64::try_from(value).unwrap_or(i64::MAX));
        Ok(())
    }

    fn serialize_f32(self, _: f32) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_f64(self, _: f64) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_char(self, _: char) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), Unknown> {
        self.0.text(value);
        Ok(())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unknown> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
    ) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unknown> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unknown> {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a, V>, Unknown> {
        Ok(Items(self.0, 0))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a, V>, Unknown> {
        Ok(Items(self.0, 0))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a, V>, Unknown> {
        Ok(Items(self.0, 0))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), Unknown>, Unknown> {
        Err(Unknown::custom(""))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Impossible<(), Unknown>, Unknown> {
        Err(Unknown::custom(""))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'a, V>, Unknown> {
        self.0.open(name);
        Ok(Fields(self.0))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), Unknown>, Unknown> {
        Err(Unknown::custom(""))
    }
}

pub struct Items<'a, V>(&'a mut V, usize);

impl<V: Visitor> SerializeSeq for Items<'_, V> {
    type Ok = ();
    type Error = Unknown;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unknown> {
        self.0.item(self.1);
        self.1 += 1;
        value.serialize(Passing(self.0))
    }

    fn end(self) -> Result<(), Unknown> {
        Ok(())
    }
}

impl<V: Visitor> SerializeTuple for Items<'_, V> {
    type Ok = ();
    type Error = Unknown;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unknown> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<(), Unknown> {
        Ok(())
    }
}

impl<V: Visitor> SerializeTupleStruct for Items<'_, V> {
    type Ok = ();
    type Error = Unknown;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unknown> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<(), Unknown> {
        Ok(())
    }
}

pub struct Fields<'a, V>(&'a mut V);

impl<V: Visitor> SerializeStruct for Fields<'_, V> {
    type Ok = ();
    type Error = Unknown;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Unknown> {
        self.0.field(name);
        value.serialize(Passing(self.0))
    }

    fn end(self) -> Result<(), Unknown> {
        self.0.close();
        Ok(())
    }
}
