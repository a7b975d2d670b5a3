//! The options as attributes of a Python namespace, with the names and types of torchrun's parser.

use super::options::OPTIONS;
use crate::spec::error::SpecError;
use crate::spec::options::{Opt, OptKind, OptValues};
use crate::spec::torchrun::values;

/// A value by its Python type.
#[derive(Clone, Debug, PartialEq)]
pub enum PythonValue {
    /// None.
    None,
    /// A str.
    Text(String),
    /// An int.
    Int(i64),
    /// A float.
    Float(f64),
    /// A bool.
    Flag(bool),
    /// A list of str.
    List(Vec<String>),
}

/// The attribute of an option.
pub fn attribute(opt: &Opt) -> String {
    opt.name.replace('-', "_")
}

/// All attributes except those of the script. As in torchrun, choices are checked only on the command line.
pub fn attributes(values: &OptValues) -> Result<Vec<(String, PythonValue)>, SpecError> {
    OPTIONS.iter().map(|opt| Ok((attribute(opt), typed(values, opt)?))).collect()
}

fn typed(values: &OptValues, opt: &Opt) -> Result<PythonValue, SpecError> {
    let text = values.text(opt.name);
    if !opt.choices.is_empty() && values.on_command_line(opt.name).is_some() {
        values::choice(values, opt.name)?;
    }
    Ok(match opt.kind {
        OptKind::Flag | OptKind::Bool => PythonValue::Flag(values::flag(values, opt.name)?),
        OptKind::Int => values::whole(values, opt.name)?.map_or(PythonValue::None, PythonValue::Int),
        OptKind::Seconds => PythonValue::Float(values::float(values, opt.name)?),
        OptKind::Text if is_list(opt) => PythonValue::List(text.map_or_else(Vec::new, values::list)),
        OptKind::Text => text.map_or(PythonValue::None, |text| PythonValue::Text(text.to_owned())),
    })
}

/// Whether the value is a list of texts.
pub fn is_list(opt: &Opt) -> bool {
    opt.name.starts_with("duplicate-")
}
