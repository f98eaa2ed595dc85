package kubernetes

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// rbacIsMinimal compares the shipped roles with the requests of all tests together: the roles allow no unused right.
// The tests themselves show that no right is missing, because they run under these roles.
func rbacIsMinimal() error {
	allowed := map[string]bool{}
	for _, of := range []string{"rbac", "rbac-node-label", "rbac-conditions", "rbac-remediation"} {
		path := strings.Replace(manifest, "rbac", of, 1)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for doc := range strings.SplitSeq(string(b), "\n---\n") {
			var role struct {
				Rules []struct{ Resources, Verbs []string }
			}
			if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
				return err
			}
			for _, r := range role.Rules {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						allowed[verb+" "+resource] = true
					}
				}
			}
		}
	}
	used := map[string]bool{}
	shared.asked.Range(func(k, _ any) bool { used[k.(string)] = true; return true })
	if len(os.Args) > 1 && strings.Contains(strings.Join(os.Args, " "), "-test.run") {
		return nil // some of the tests need only some of the rights
	}
	if !maps.Equal(allowed, used) {
		return fmt.Errorf("roles allow %v, the tests have asked for %v: want the same", slices.Sorted(maps.Keys(allowed)),
			slices.Sorted(maps.Keys(used)))
	}
	return nil
}
