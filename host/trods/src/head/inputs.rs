//! The name of the header field with the inputs of a generated response.

/// The header field in which a server lists the inputs from which it generated a response, and in
/// which it receives them when it must generate the response again (Lloyd and Freedman, section 7).
pub const INPUTS: &str = "X-TRODS";

/// Whether a program behind CGI gets a request's field of this name as `HTTP_X_TRODS` (RFC 3875
/// section 4.1.18): with a hyphen, with an underscore, and from lighttpd with any other sign.
pub(super) fn is_inputs(name: &[u8]) -> bool {
    let is_same = |(a, b): (&u8, u8)| match b {
        b'-' => !a.is_ascii_alphanumeric(),
        b => a.eq_ignore_ascii_case(&b),
    };
    name.len() == INPUTS.len() && name.iter().zip(INPUTS.bytes()).all(is_same)
}
