use super::*;

/// APP-33: word for word what upstream's webhook says of a Pod that Kubernetes would refuse.
#[test]
fn dry_run_reports_errors_of_the_pod() {
    let meta = &serving::service::Service::META;
    let problem = |field: &str, message: &str| Problem { field: field.into(), message: message.into() };
    let name = problem("spec.template.spec.containers[0].name", "Invalid value: \"&x\": a label");
    let message_of = |problems: &[Problem]| StatusError::invalid(meta, "app", problems).for_dry_run(meta).message;
    assert_eq!(
        message_of(std::slice::from_ref(&name)),
        "Service.serving.knative.dev \"app\" is invalid: spec.template: validation callback failed: dry run failed with \
         Pod \"dry-run-validation\" is invalid: spec.containers[0].name: Invalid value: \"&x\": a label"
    );
    for other in [
        problem("spec.template.spec.containers[0].image", "missing field(s)"),
        problem("metadata.name", "Invalid value: \"&x\": a label"),
        problem("spec.template.spec.timeoutSeconds", "Invalid value: \"string\": a in body must be of type integer"),
    ] {
        for problems in [&[other.clone()][..], &[name.clone(), other]] {
            assert!(!message_of(problems).contains("dry run"), "Knative's own rules go before: {problems:?}");
        }
    }
    let other = &k8s_openapi::api::core::v1::ConfigMap::META;
    let refusal = StatusError::invalid(other, "app", &[name]);
    assert_eq!(refusal.clone().for_dry_run(other), refusal);
}

#[test]
fn write_to_read_only_kind_names_the_alternative() {
    let meta = &k8s_openapi::api::apps::v1::Deployment::META;
    for (verb, message_of) in
        [("create", "kn service create"), ("patch", "kn service update"), ("update", "kubectl edit ksvc")]
    {
        let refusal = StatusError::method_not_allowed().with_verb(meta, AllowedVerbs::Derived, verb);
        assert!(refusal.message.contains(message_of), "{}", refusal.message);
    }
    let writable = StatusError::method_not_allowed().with_verb(meta, AllowedVerbs::Full, "create");
    assert_eq!(writable.message, "create is not supported on resources of kind \"deployments.apps\"");
    let map = &k8s_openapi::api::core::v1::ConfigMap::META;
    let refusal = StatusError::method_not_allowed().with_verb(map, AllowedVerbs::Full, "patch");
    assert_eq!(refusal.message, "patch is not supported on resources of kind \"configmaps\"");
}
