//! Mutual TLS: who has a good certificate of the CA gets in, under its own name; each other
//! case is closed with a line that says what is wrong, and nobody else notices.

mod link_support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use link_support::{Side, keep_log, log_text, logged, name, rejoined, request, until, until_one};
use quire_core::dsm::message::{Access, PageNumber, Pages, ToKernel};
use quire_dsm::link::identity::{Authority, Files, Pair, Validity};
use quire_dsm::link::{Address, Identity, LinkId, Security};
use quire_dsm::wire::Control;
use quire_dsm::wire::control::Handle;

const DAY: Duration = Duration::from_secs(86400);

/// A CA and what it issued.
struct Certificates {
    authority: Authority,
}

impl Certificates {
    fn new() -> Certificates {
        Certificates {
            authority: Authority::generate(Validity::days(30)).unwrap(),
        }
    }

    fn identity(&self, text: &str) -> Arc<Identity> {
        self.identity_for(text, Validity::days(10))
    }

    fn identity_for(&self, text: &str, validity: Validity) -> Arc<Identity> {
        let pair = self.authority.issue(&name(text), validity).unwrap();
        self.identity_of(text, &pair)
    }

    /// An identity that trusts this CA, with any pair.
    fn identity_of(&self, text: &str, pair: &Pair) -> Arc<Identity> {
        let authority = &self.authority.pair().certificate;
        Arc::new(Identity::from_pem(&name(text), pair, authority).unwrap())
    }
}

/// A server with TLS on loopback, and a good client of it.
struct Setting {
    certificates: Certificates,
    server: Side,
    address: Address,
    client: Side,
    link: LinkId,
}

fn setting() -> Setting {
    keep_log();
    let certificates = Certificates::new();
    let mut server = Side::named("server");
    server.notes.name = Some(name("server"));
    let any = "127.0.0.1:0".parse().unwrap();
    let security = Security::Tls(certificates.identity("server"));
    let address = server.turn.links.listen(&any, &security).unwrap();
    let mut client = Side::named("node1");
    let security = Security::Tls(certificates.identity("node1"));
    let expected = Some(name("server"));
    let link = client
        .turn
        .links
        .connect(&address, &security, expected)
        .unwrap();
    until(&mut server, &mut client, |_, client| {
        !client.notes.welcomed.is_empty()
    });
    Setting {
        certificates,
        server,
        address,
        client,
        link,
    }
}

impl Setting {
    /// The good client still gets answers.
    fn still_works(&mut self) {
        let before = self.client.notes.messages.len();
        assert!(self.client.turn.links.send(self.link, request(7)));
        until(&mut self.server, &mut self.client, |_, client| {
            client.notes.messages.len() > before
        });
    }

    /// A client with this identity that calls itself so is closed, the server's log says
    /// these words, and the good client goes on.
    fn is_cut_off(&mut self, called: &str, identity: Arc<Identity>, words: &[&str]) {
        let mut bad = Side::named(called);
        let security = Security::Tls(identity);
        bad.turn
            .links
            .connect(&self.address, &security, None)
            .unwrap();
        until(&mut self.server, &mut bad, |_, bad| {
            !bad.notes.closed.is_empty()
        });
        let mut all = vec!["WARN", "link closed"];
        all.extend(words);
        until_one(&mut self.server, |_| logged(&all));
        assert!(bad.notes.welcomed.is_empty());
        assert!(bad.notes.messages.is_empty());
        assert_eq!(
            self.server.notes.greeted.len(),
            1,
            "the bad client was let in"
        );
        self.still_works();
    }
}

#[test]
fn a_good_certificate_gets_in_under_its_name() {
    let mut setting = setting();
    setting.still_works();
    let (_, who) = &setting.server.notes.greeted[0];
    assert_eq!(who.to_string(), "node1");
}

#[test]
fn contents_pass_whole() {
    let mut setting = setting();
    let (served, _) = setting.server.notes.greeted[0];
    let pool = setting.server.turn.links.pool().clone();
    let mut sent = Vec::new();
    for (pages, size) in [
        (1, 4096),
        (16, 4096),
        (3, 2 << 20),
        (16, 2 << 20),
        (1, 4096),
    ] {
        let fill = |page: u32| (0..size).map(|at| (at as u32 * 31 + page) as u8).collect();
        let data = (0..pages).map(|page| {
            let bytes: Vec<u8> = fill(page);
            Some(pool.copy(&bytes))
        });
        sent.push(Control::ToKernel {
            object: Handle(3),
            stamp: 7,
            message: ToKernel::DataProvided {
                pages: Pages {
                    first: PageNumber(5),
                    count: pages,
                },
                data: data.collect(),
                access: Access::Write,
            },
        });
    }
    for message in &sent {
        assert!(setting.server.turn.links.send(served, message.clone()));
    }
    assert!(setting.server.turn.links.send(served, request(7)));
    until(&mut setting.server, &mut setting.client, |_, client| {
        let last = client.notes.messages.last();
        last.is_some_and(|(_, message)| *message == request(7))
    });
    let came = setting.client.notes.messages.iter();
    let came = rejoined(came.map(|(_, message)| message));
    assert_eq!(came.len(), sent.len() + 1);
    assert!(came.iter().zip(&sent).all(|(came, sent)| came == sent));
}

#[test]
fn another_ca_is_cut_off() {
    let mut setting = setting();
    let other = Certificates::new();
    let pair = other
        .authority
        .issue(&name("node2"), Validity::days(1))
        .unwrap();
    let identity = setting.certificates.identity_of("node2", &pair);
    setting.is_cut_off("node2", identity, &["certificate is not from our CA"]);
}

#[test]
fn an_expired_certificate_is_cut_off() {
    let mut setting = setting();
    let now = SystemTime::now();
    let validity = Validity {
        from: now - 10 * DAY,
        until: now - 3 * DAY,
    };
    let identity = setting.certificates.identity_for("node2", validity);
    setting.is_cut_off(
        "node2",
        identity,
        &["certificate ended 3 days ago: issue a new one"],
    );
}

#[test]
fn a_certificate_of_the_future_is_cut_off() {
    let mut setting = setting();
    let now = SystemTime::now();
    let validity = Validity {
        from: now + 2 * DAY + DAY / 24,
        until: now + 9 * DAY,
    };
    let identity = setting.certificates.identity_for("node2", validity);
    let words = ["certificate is not valid for another 2 days: look at the clocks"];
    setting.is_cut_off("node2", identity, &words);
}

#[test]
fn another_name_than_the_certificates_is_cut_off() {
    let mut setting = setting();
    let identity = setting.certificates.identity("node2");
    let words = ["says that it is node1, but its certificate is for node2, not for node1"];
    setting.is_cut_off("node1", identity, &words);
}

/// To certificates these are the same name; whoever gives rights could take them for two.
#[test]
fn another_spelling_of_the_name_is_cut_off() {
    let mut setting = setting();
    for spelling in ["NODE2", "node2."] {
        let identity = setting.certificates.identity("node2");
        let claims = format!("says that it is {spelling}, but");
        let words = [
            claims.as_str(),
            "certificate cannot have that name: take small letters",
        ];
        setting.is_cut_off(spelling, identity, &words);
        let issued = setting
            .certificates
            .authority
            .issue(&name(spelling), Validity::days(1));
        assert!(issued.is_err(), "{spelling}");
    }
}

#[test]
fn garbage_and_plain_text_are_cut_off() {
    let mut setting = setting();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"QDSM\x01\0\0\0\0\0\0\0\0\0\0\0",
    ] {
        let Address::Tcp(address) = setting.address else {
            panic!("no TCP address");
        };
        let mut bad = TcpStream::connect(address).unwrap();
        let from = bad.local_addr().unwrap().to_string();
        bad.write_all(bytes).unwrap();
        until_one(&mut setting.server, |_| {
            logged(&["WARN", &from, "this is no TLS"])
        });
        let mut rest = Vec::new();
        // It is closed, with or without an alert before that.
        let _ = bad.read_to_end(&mut rest);
        setting.still_works();
    }
}

#[test]
fn who_has_no_certificate_is_cut_off_by_the_plain_side_too() {
    keep_log();
    let certificates = Certificates::new();
    let mut server = Side::named("server");
    let any = "127.0.0.1:0".parse().unwrap();
    let security = Security::Automatic(None);
    let address = server.turn.links.listen(&any, &security).unwrap();
    let mut client = Side::named("node1");
    let security = Security::Tls(certificates.identity("node1"));
    client
        .turn
        .links
        .connect(&address, &security, None)
        .unwrap();
    until(&mut server, &mut client, |_, client| {
        client.ended_with("this is no TLS")
    });
    assert!(
        logged(&["WARN", "the peer begins a TLS session"]),
        "{}",
        log_text()
    );
}

#[test]
fn a_server_of_another_name_or_ca_is_left() {
    let mut setting = setting();
    let mut wrong = Side::named("node2");
    let security = Security::Tls(setting.certificates.identity("node2"));
    let expected = Some(name("other"));
    wrong
        .turn
        .links
        .connect(&setting.address, &security, expected)
        .unwrap();
    until(&mut setting.server, &mut wrong, |_, wrong| {
        wrong.ended_with("not for other")
    });

    let other = Certificates::new();
    let mut wrong = Side::named("node2");
    let security = Security::Tls(other.identity("node2"));
    wrong
        .turn
        .links
        .connect(&setting.address, &security, None)
        .unwrap();
    until(&mut setting.server, &mut wrong, |_, wrong| {
        wrong.ended_with("not from our CA")
    });

    // A server that says another name than its certificate's.
    setting.server.notes.name = Some(name("liar"));
    let mut wrong = Side::named("node2");
    let security = Security::Tls(setting.certificates.identity("node2"));
    wrong
        .turn
        .links
        .connect(&setting.address, &security, None)
        .unwrap();
    until(&mut setting.server, &mut wrong, |_, wrong| {
        wrong.ended_with("says that it is liar, but its certificate")
    });
    setting.still_works();
}

#[test]
fn the_network_needs_a_certificate_or_an_explicit_word() {
    let mut server = Side::named("server");
    let any = "0.0.0.0:0".parse().unwrap();
    let links = &mut server.turn.links;
    let error = links.listen(&any, &Security::Automatic(None)).unwrap_err();
    assert!(
        error.to_string().contains("there is no certificate"),
        "{error}"
    );
    let far = "192.0.2.1:7000".parse().unwrap();
    links
        .connect(&far, &Security::Automatic(None), None)
        .unwrap_err();
    links.listen(&any, &Security::Plaintext).unwrap();
}

/// Files as `Identity::load` wants them.
fn files(directory: &tempfile::TempDir, authority: &Authority, validity: Validity) -> Files {
    let path = |name| directory.path().join(name);
    let files = Files {
        certificate: path("node1.pem"),
        key: path("node1.key"),
        authority: path("ca.pem"),
    };
    let pair = authority.issue(&name("node1"), validity).unwrap();
    pair.write(&files.certificate, &files.key).unwrap();
    authority
        .pair()
        .write(&files.authority, &path("ca.key"))
        .unwrap();
    files
}

#[test]
fn files_are_written_and_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::generate(Validity::days(30)).unwrap();
    let files = files(&directory, &authority, Validity::days(20));
    let mode = fs::metadata(&files.key).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let identity = Identity::load(&name("node1"), &files).unwrap();
    assert_eq!(identity.name(), &name("node1"));

    // The CA issues for others after it was loaded.
    let key = directory.path().join("ca.key");
    let authority = Authority::load(&files.authority, &key).unwrap();
    let pair = authority.issue(&name("node2"), Validity::days(1)).unwrap();
    let (certificate, key) = (
        directory.path().join("2.pem"),
        directory.path().join("2.key"),
    );
    pair.write(&certificate, &key).unwrap();
    let second = Files {
        certificate,
        key,
        authority: files.authority.clone(),
    };
    Identity::load(&name("node2"), &second).unwrap();

    // Files that are there are not overwritten.
    let error = pair.write(&files.certificate, &files.key).unwrap_err();
    assert!(error.to_string().contains("is there already"), "{error}");
}

#[test]
fn bad_files_are_refused_with_the_remedy() {
    keep_log();
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::generate(Validity::days(30)).unwrap();
    let good = files(&directory, &authority, Validity::days(20));
    let refused = |name: &str, files: &Files, words: &str| {
        let error = Identity::load(&link_support::name(name), files).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    refused("node2", &good, "not for node2");

    let missing = Files {
        key: directory.path().join("nothing"),
        ..good.clone()
    };
    refused("node1", &missing, "nothing: No such file");
    let swapped = Files {
        certificate: good.key.clone(),
        ..good.clone()
    };
    refused("node1", &swapped, "holds no certificate in PEM form");
    let other = Authority::generate(Validity::days(30)).unwrap();
    let (certificate, key) = (
        directory.path().join("o.pem"),
        directory.path().join("o.key"),
    );
    other.pair().write(&certificate, &key).unwrap();
    let foreign = Files {
        authority: certificate,
        ..good.clone()
    };
    refused("node1", &foreign, "is not from our CA");

    fs::set_permissions(&good.key, fs::Permissions::from_mode(0o640)).unwrap();
    refused("node1", &good, "mode 640): chmod 600");
}

#[test]
fn an_own_certificate_that_ended_or_soon_will_is_said() {
    keep_log();
    let authority = Authority::generate(Validity::days(30)).unwrap();
    let now = SystemTime::now();
    let ended = Validity {
        from: now - 2 * DAY,
        until: now - DAY / 24,
    };
    let directory = tempfile::tempdir().unwrap();
    let error = Identity::load(&name("node1"), &files(&directory, &authority, ended)).unwrap_err();
    let words = "our certificate for node1 ended 60 minutes ago: issue a new one";
    assert_eq!(error.to_string(), words);

    let directory = tempfile::tempdir().unwrap();
    let soon = files(&directory, &authority, Validity::days(3));
    Identity::load(&name("node1"), &soon).unwrap();
    assert!(
        logged(&[
            "WARN",
            "node1",
            "our certificate ends in",
            "days: issue a new one"
        ]),
        "{}",
        log_text()
    );
}
