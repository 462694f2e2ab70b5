//! jsonb values as bytes and as text. Equal values that one expression made have equal bytes.

use std::ffi::CStr;

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::pg_sys;
use pgrx::pg_sys::Datum;
use pgrx::pgrx_sql_entity_graph::metadata::{self, SqlTranslatable};

/// The value's bytes, without the header of its length.
pub fn bytes(jsonb: Datum) -> Vec<u8> {
    // SAFETY: a jsonb datum; detoasting gives a plain varlena, which the slice does not outlive.
    unsafe {
        let plain = pg_sys::pg_detoast_datum(jsonb.cast_mut_ptr());
        let bytes = pgrx::varlena::varlena_to_byte_slice(plain).to_vec();
        if !std::ptr::eq(plain, jsonb.cast_mut_ptr()) {
            pg_sys::pfree(plain.cast());
        }
        bytes
    }
}

/// The value that [`bytes`] came from, in the current memory context.
pub fn from_bytes(bytes: &[u8]) -> Datum {
    // SAFETY: palloc'd with room for the header and the bytes.
    unsafe {
        let size = bytes.len() + pg_sys::VARHDRSZ;
        let value = pg_sys::palloc(size).cast::<pg_sys::varlena>();
        pgrx::set_varsize_4b(value, i32::try_from(size).expect("a jsonb is below 1 GB"));
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>().add(pg_sys::VARHDRSZ), bytes.len());
        Datum::from(value)
    }
}

/// The value as JSON text.
pub fn text(jsonb: Datum) -> String {
    // SAFETY: a jsonb datum; jsonb_out returns a palloc'd C string in the server's encoding, which for
    // everything that can be in a jsonb we treat as UTF-8 and repair if it is not.
    unsafe {
        let text = pg_sys::OidOutputFunctionCall(JSONB_OUT, jsonb);
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        pg_sys::pfree(text.cast());
        owned
    }
}

/// `jsonb_out` of pg_proc.dat.
const JSONB_OUT: pg_sys::Oid = pg_sys::Oid::from_u32(3804);

/// [`text`] of the value that these [`bytes`] came from. Allocates in the current memory context, but
/// needs no transaction.
pub fn text_of(bytes: &[u8]) -> String {
    let value = from_bytes(bytes);
    let text = text(value);
    // SAFETY: palloc'd by from_bytes.
    unsafe { pg_sys::pfree(value.cast_mut_ptr()) };
    text
}

/// A jsonb value, by its [`bytes`], as a result column of an SQL function.
pub struct Jsonb(pub Vec<u8>);

impl pgrx::IntoDatum for Jsonb {
    fn into_datum(self) -> Option<Datum> {
        Some(from_bytes(&self.0))
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

// SAFETY: the datum that is returned is a jsonb, as told here.
unsafe impl SqlTranslatable for Jsonb {
    const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!(Jsonb);
    const TYPE_ORIGIN: metadata::TypeOrigin = metadata::TypeOrigin::External;
    const ARGUMENT_SQL: Result<metadata::SqlMappingRef, metadata::ArgumentError> =
        Ok(metadata::SqlMappingRef::literal("jsonb"));
    const RETURN_SQL: Result<metadata::ReturnsRef, metadata::ReturnsError> =
        Ok(metadata::ReturnsRef::One(metadata::SqlMappingRef::literal("jsonb")));
}

// SAFETY: see above; the datum is allocated in the memory context of the call.
unsafe impl BoxRet for Jsonb {
    // SAFETY: pgrx calls it at the end of a function that returns this.
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        let datum = from_bytes(&self.0);
        // SAFETY: a valid datum of the declared type.
        unsafe { fcinfo.return_raw_datum(datum) }
    }
}
