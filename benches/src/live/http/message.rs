//! The minimum of HTTP/1.1 (RFC 9112) for one request and one answer, mainly finding the end of a message.

use anyhow::{Context as _, Result, ensure};

pub const REQUEST: &[u8] = b"GET /1k HTTP/1.1\r\nHost: bench\r\n\r\n";

pub const BODY_LEN_BYTES: usize = 1024;

const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The server's answer. The connection stays open, the default in HTTP/1.1.
pub fn answer() -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: \
         {BODY_LEN_BYTES}\r\n\r\n"
    )
    .into_bytes();
    answer.resize(answer.len() + BODY_LEN_BYTES, b'x');
    answer
}

/// Whether a request without a body is complete.
pub fn is_request(received: &[u8]) -> bool {
    received.ends_with(END_OF_HEAD)
}

/// Whether the answer is complete. Fails if it is not one of ours.
pub fn is_answer(received: &[u8]) -> Result<bool> {
    let Some(head_len) = received
        .windows(END_OF_HEAD.len())
        .position(|window| window == END_OF_HEAD)
    else {
        return Ok(false);
    };
    let head = std::str::from_utf8(&received[..head_len]).context("the head is text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    ensure!(status.starts_with("HTTP/1.1 200 "), "answered {status}");
    let body_len: usize = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("the answer has a length")?
        .1
        .trim()
        .parse()
        .context("read the answer's length")?;
    let len = head_len + END_OF_HEAD.len() + body_len;
    ensure!(received.len() <= len, "more came than was asked for");
    Ok(received.len() == len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_where_its_last_byte_is() {
        let answer = answer();
        for len in 0..answer.len() {
            assert!(!is_answer(&answer[..len]).unwrap(), "{len}");
        }
        assert!(is_answer(&answer).unwrap());
        assert!(!is_request(&REQUEST[..REQUEST.len() - 1]) && is_request(REQUEST));
    }

    #[test]
    fn what_is_no_answer_of_ours_is_an_error() {
        let mut long = answer();
        long.push(b'x');
        assert!(is_answer(&long).is_err());
        assert!(is_answer(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(is_answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
