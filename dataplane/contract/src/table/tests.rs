use super::*;

#[test]
fn host_is_found_in_any_case_with_port_or_trailing_dot() {
    let mut table = RoutingTable::default();
    table.hosts.insert("app.default.localhost", Arc::new(Route::default()));

    for host in ["app.default.localhost", "APP.Default.localhost:8080", "app.default.localhost."] {
        assert!(table.route(host).is_some(), "{host}");
    }
    for host in ["", "default.localhost", "app.default.localhost.evil", "app:default.localhost"] {
        assert!(table.route(host).is_none(), "{host}");
    }
}

#[test]
fn host_name_removes_only_the_port() {
    for (authority, host) in [("a:80", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a.:1", "a")] {
        assert_eq!(host_name(authority), host);
    }
}
