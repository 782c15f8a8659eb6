//! What IANA calls codes of answers and types of records of the DNS.

use domain::base::iana::{Rcode, Rtype};

/// What IANA calls the code of an answer, in lower case. Those of EDNS have no name here, since anybody may make some up.
pub fn code(number: u16) -> Option<String> {
    let code = Rcode::checked_from_int(u8::try_from(number).ok()?)?;
    let name = std::str::from_utf8(code.to_mnemonic()?).ok()?;
    Some(name.to_ascii_lowercase())
}

/// What IANA calls a type of records, such as `AAAA`; without a name `TYPE` and its number (RFC 3597).
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
