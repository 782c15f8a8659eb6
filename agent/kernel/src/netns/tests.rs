use super::*;

#[test]
fn without_a_name_it_is_the_agents_own_and_with_two_it_is_one() {
    let own = Namespace::own().unwrap();
    let [only] = &Namespace::open_all(&[]).unwrap()[..] else {
        panic!("one namespace");
    };
    assert_eq!((only.number(), only.name()), (own.number(), ""));
    let pid = std::process::id();
    let names = ["self", &format!("pid:{pid}"), "/proc/self/ns/net"];
    let names = names.map(|name| name.parse().unwrap());
    let [only] = &Namespace::open_all(&names).unwrap()[..] else {
        panic!("one namespace");
    };
    assert_eq!((only.number(), only.name()), (own.number(), "self"));
    // Its threads are in it already, so no privilege is needed.
    let number = only.enter(|| Ok(Namespace::own()?.number())).unwrap();
    assert_eq!(number, own.number());
}

#[test]
fn what_is_no_network_namespace_is_told_by_its_name() {
    let refusal = |name: &str| {
        let refused = Namespace::open_all(&[name.parse().unwrap()]);
        format!("{:#}", refused.unwrap_err())
    };
    let unknown = refusal("nowhere7");
    for part in ["no network namespace 'nowhere7'", "ip netns list", "pid:N"] {
        assert!(unknown.contains(part), "{unknown}");
    }
    let file = refusal("/proc/self/status");
    assert!(
        file.contains("/proc/self/status is not a network"),
        "{file}"
    );
    let gone = refusal("/nowhere7/netns");
    assert!(gone.contains("/nowhere7/netns: No such file"), "{gone}");
    let process = refusal("pid:4194304");
    assert!(process.contains("no process 4194304"), "{process}");
}
