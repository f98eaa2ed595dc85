package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// granting holds the fields of roles and bindings, with or without a namespace.
type granting struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []rbacv1.PolicyRule
	RoleRef  rbacv1.RoleRef
	Subjects []rbacv1.Subject
}

// awaitRights waits until the API server permits the requests that roles and bindings in a manifest allow to service accounts.
func (c *Client) awaitRights(docs []string) error {
	rules := map[string][]rbacv1.PolicyRule{} // by kind, namespace and name of the role
	key := func(kind, namespace, name string) string {
		if kind == "ClusterRole" {
			namespace = ""
		}
		return kind + " " + namespace + "/" + name
	}
	var bindings []granting
	for _, doc := range docs {
		var g granting
		if err := yaml.Unmarshal([]byte(doc), &g); err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
		switch g.Kind {
		case "Role", "ClusterRole":
			rules[key(g.Kind, g.Metadata.Namespace, g.Metadata.Name)] = g.Rules
		case "RoleBinding", "ClusterRoleBinding":
			bindings = append(bindings, g)
		}
	}
	for _, b := range bindings {
		for _, s := range b.Subjects {
			if s.Kind != rbacv1.ServiceAccountKind {
				continue
			}
			user := "system:serviceaccount:" + s.Namespace + ":" + s.Name
			for _, rule := range rules[key(b.RoleRef.Kind, b.Metadata.Namespace, b.RoleRef.Name)] {
				if err := c.awaitRule(user, b.Metadata.Namespace, rule); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// awaitRule waits until a user has the rights of a rule in a namespace, or in all namespaces if it is "". The last group, resource, verb
// and name stand for all: a rule comes into force as a whole.
func (c *Client) awaitRule(user, namespace string, rule rbacv1.PolicyRule) error {
	last := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return list[len(list)-1]
	}
	resource, subresource, _ := strings.Cut(last(rule.Resources), "/")
	asks := &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: last(rule.Verbs), Group: last(rule.APIGroups), Resource: resource,
		Subresource: subresource, Name: last(rule.ResourceNames)}
	review := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: asks}}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		permitted, err := c.permitted(review)
		if err != nil || permitted {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s has no right %v %v after its role was applied", user, asks, patience)
		}
	}
}

func (c *Client) permitted(review authorizationv1.SubjectAccessReview) (bool, error) {
	b, err := json.Marshal(review)
	if err != nil {
		return false, fmt.Errorf("review of rights: %w", err)
	}
	if b, err = c.Do(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "", b); err != nil {
		return false, err
	}
	if err := json.Unmarshal(b, &review); err != nil {
		return false, fmt.Errorf("review of rights: %w", err)
	}
	return review.Status.Allowed, nil
}
