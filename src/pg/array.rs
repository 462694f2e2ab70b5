//! Arrays of bare values, for statements that take a batch at a time.

use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

struct ElementType {
    oid: Oid,
    length: i16,
    by_value: bool,
    align: std::ffi::c_char,
}

fn element_type(oid: Oid) -> ElementType {
    let mut element = ElementType { oid, length: 0, by_value: false, align: 0 };
    // SAFETY: a catalog lookup that fills three valid out-pointers.
    unsafe {
        pg_sys::get_typlenbyvalalign(
            oid,
            &raw mut element.length,
            &raw mut element.by_value,
            &raw mut element.align,
        );
    }
    element
}

/// A one-dimensional array over `values` of type `element`, in the current memory context.
pub fn of(element: Oid, values: &[Option<Datum>]) -> Datum {
    let element = element_type(element);
    let mut datums: Vec<Datum> = values.iter().map(|v| v.unwrap_or(Datum::null())).collect();
    let mut nulls: Vec<bool> = values.iter().map(Option::is_none).collect();
    let mut length = c_int::try_from(values.len()).expect("a batch is far smaller");
    let mut lower_bound: c_int = 1;
    // SAFETY: as many values and flags as `length` says; construct_md_array copies them.
    unsafe {
        Datum::from(pg_sys::construct_md_array(
            datums.as_mut_ptr(),
            nulls.as_mut_ptr(),
            1,
            &raw mut length,
            &raw mut lower_bound,
            element.oid,
            c_int::from(element.length),
            element.by_value,
            element.align,
        ))
    }
}

/// The values of an array that PostgreSQL made; they live as long as `array`.
pub fn values(element: Oid, array: Datum) -> Vec<Option<Datum>> {
    let element = element_type(element);
    let mut datums: *mut Datum = std::ptr::null_mut();
    let mut nulls: *mut bool = std::ptr::null_mut();
    let mut count: c_int = 0;
    // SAFETY: `array` is an array over `element` (its type was checked when the policy was loaded);
    // both results are palloc'd with `count` entries.
    unsafe {
        let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        pg_sys::deconstruct_array(
            array,
            element.oid,
            c_int::from(element.length),
            element.by_value,
            element.align,
            &raw mut datums,
            &raw mut nulls,
            &raw mut count,
        );
        (0..count as usize).map(|i| (!*nulls.add(i)).then(|| *datums.add(i))).collect()
    }
}

/// The bytes of a value, so that equal values (of a type without alternative forms) have equal bytes.
pub fn image(type_oid: Oid, value: Datum) -> Vec<u8> {
    let element = element_type(type_oid);
    if element.by_value {
        return value.value().to_ne_bytes().to_vec();
    }
    // SAFETY: a by-reference value of this type: fixed length, varlena or C string.
    unsafe {
        match element.length {
            -1 => super::json::bytes(value),
            -2 => std::ffi::CStr::from_ptr(value.cast_mut_ptr()).to_bytes().to_vec(),
            length => {
                let length = usize::try_from(length).expect("a fixed length is positive");
                std::slice::from_raw_parts(value.cast_mut_ptr::<u8>(), length).to_vec()
            }
        }
    }
}
