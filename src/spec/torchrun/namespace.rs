//! The options as attributes, named and typed as those of the namespace that torchrun's parser makes.

use super::options::OPTIONS;
use super::read;
use crate::spec::SpecError;
use crate::spec::options::{Kind, Opt, Values};

/// A value as Python has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Typed {
    /// There is none.
    None,
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// Another number.
    Float(f64),
    /// Yes or no.
    Flag(bool),
    /// Texts.
    List(Vec<String>),
}

/// The name of an option's attribute.
pub fn attribute(opt: &Opt) -> String {
    opt.name.replace('-', "_")
}

/// All attributes but the script's. What has choices is held to them where the command line says it, as in torchrun.
pub fn of(values: &Values) -> Result<Vec<(String, Typed)>, SpecError> {
    OPTIONS.iter().map(|opt| Ok((attribute(opt), typed(values, opt)?))).collect()
}

fn typed(values: &Values, opt: &Opt) -> Result<Typed, SpecError> {
    let text = values.text(opt.name);
    if !opt.choices.is_empty() && values.on_command_line(opt.name).is_some() {
        read::choice(values, opt.name)?;
    }
    Ok(match opt.kind {
        Kind::Flag | Kind::Bool => Typed::Flag(read::flag(values, opt.name)?),
        Kind::Int => read::whole(values, opt.name)?.map_or(Typed::None, Typed::Int),
        Kind::Seconds => Typed::Float(read::float(values, opt.name)?),
        Kind::Text if is_list(opt) => Typed::List(text.map_or_else(Vec::new, read::list)),
        Kind::Text => text.map_or(Typed::None, |text| Typed::Text(text.to_owned())),
    })
}

/// Whether its value is a list of texts.
pub fn is_list(opt: &Opt) -> bool {
    opt.name.starts_with("duplicate-")
}
