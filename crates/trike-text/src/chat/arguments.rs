//! Arguments of functions as in Python: positional or by keyword.

use minijinja::{
    Error, ErrorKind,
    value::{Kwargs, Value, from_args},
};

/// Binds positional and keyword arguments to parameter names.
pub(super) fn bind<const N: usize>(args: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (places, kwargs): (&[Value], Kwargs) = from_args(args)?;
    if places.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut bound = std::array::from_fn(|index| places.get(index).cloned());
    for (slot, name) in bound.iter_mut().zip(names) {
        if kwargs.has(name) {
            let value = kwargs.get::<Value>(name)?;
            if slot.replace(value).is_some() {
                return Err(Error::new(ErrorKind::TooManyArguments, format!("duplicate argument `{name}`")));
            }
        }
    }
    kwargs.assert_all_used()?;
    Ok(bound)
}

/// Passes all arguments as keyword arguments.
pub(super) fn by_name<const N: usize>(args: &[Value], names: [&str; N]) -> Result<Value, Error> {
    let bound = bind(args, names)?;
    let named = names.iter().zip(bound).filter_map(|(&name, value)| Some((name.to_owned(), value?)));
    Ok(Value::from(named.collect::<Kwargs>()))
}
