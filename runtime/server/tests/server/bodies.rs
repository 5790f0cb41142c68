//! Bodies of requests that are in memory together.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use ruvllm_tests::wat::Module;
use serde_json::json;

use crate::admin::Place;
use crate::common::{Answer, Service, soon};

/// A client that announces a body of 64 KiB, and has sent so much of it.
fn begin(service: &Service, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(service.server.address()).unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 65536\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; bytes]).unwrap();
    stream
}

/// The answer to a body of about so many bytes.
fn tokenize(service: &Service, bytes: usize) -> Answer {
    service.post("/tokenize", &json!({"content": "a".repeat(bytes)}))
}

/// Clients that have sent so much of their bodies each, and how one of `more` bytes is refused then.
fn fill<const N: usize>(service: &Service, bytes: usize, more: usize) -> ([TcpStream; N], Answer) {
    for _ in 0..50 {
        let begun = [(); N].map(|()| begin(service, bytes));
        thread::sleep(Duration::from_millis(100));
        let answer = tokenize(service, more);
        // Otherwise it was read before the others, one of which was refused.
        if answer.status != 200 {
            return (begun, answer);
        }
    }
    panic!("{N} bodies of {bytes} bytes leave room for {more}");
}

#[test]
fn bodies_that_others_have_begun_leave_room_for_short_ones_and_none_for_more() {
    let service = Service::start(&["--max-body", "64K", "--max-bodies", "128K"]);
    // What is only announced takes nothing.
    let announced: Vec<TcpStream> = (0..50).map(|_| begin(&service, 0)).collect();
    assert_eq!(tokenize(&service, 60_000).status, 200);
    let ([mut ends, gone], refused) = fill(&service, 60_000, 30_000);
    refused.refused(503, None, "bodies_full");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(tokenize(&service, 1_000).status, 200);
    // One that comes to its end, and one that goes away.
    ends.write_all(&[b' '; 65_536 - 60_000]).unwrap();
    let mut answer = [0; 12];
    ends.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
    soon("its room is free", || tokenize(&service, 30_000).status == 200);
    drop((gone, announced));
    soon("all of it is", || tokenize(&service, 60_000).status == 200);
}

#[test]
fn values_count_beside_the_bytes_that_they_were() {
    let service = Service::start(&["--max-body", "64K", "--max-bodies", "1M"]);
    let values = |n: usize| json!({"content": "a", "metadata": vec![json!([0]); n]});
    service.post("/tokenize", &values(10_000)).refused(413, None, "request_too_large");
    let answer = service.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(answer.status, 200);
}

#[test]
fn what_clients_send_takes_nothing_from_administrators() {
    let place = Place::new();
    let console = place.serve(&["--max-body", "64K", "--max-bodies", "64K"]);
    let ([_begun], refused) = fill(&console.service, 64_000, 4_000);
    refused.refused(503, None, "bodies_full");
    let id = console.staged(&place.pack(1, &Module::default()));
    console.activate(id);
}
