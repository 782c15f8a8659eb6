//! The IANA names of DNS response codes and record types.

use domain::base::iana::{Rcode, Rtype};

/// The IANA name of a response code, in lower case. EDNS codes have no name here, since anyone can invent
/// some.
pub fn code(number: u16) -> Option<String> {
    let code = Rcode::checked_from_int(u8::try_from(number).ok()?)?;
    let name = std::str::from_utf8(code.to_mnemonic()?).ok()?;
    Some(name.to_ascii_lowercase())
}

/// The IANA name of a record type, such as `AAAA`, or `TYPE` and the number if it has no name (RFC 3597).
pub fn record_type(number: u16) -> String {
    Rtype::from_int(number).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_names() {
        let names = [0, 2, 3, 5].map(|number| code(number).unwrap());
        assert_eq!(names, ["noerror", "servfail", "nxdomain", "refused"]);
        assert_eq!([15, 16, 4095, u16::MAX].map(code), [const { None }; 4]);
        let types = [1, 28, 65, 65_400].map(record_type);
        assert_eq!(types, ["A", "AAAA", "HTTPS", "TYPE65400"]);
    }
}
