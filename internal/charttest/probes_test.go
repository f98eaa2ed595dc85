package charttest

import (
	"slices"
	"strings"
	"testing"
)

// pods is what the pods of an object are made of.
func pods(t *testing.T, o object) object {
	t.Helper()
	spec, ok := o.at("spec", "template", "spec").(map[string]any)
	if !ok {
		t.Fatalf("%s: has no pods", o)
	}
	return spec
}

// A kubelet asks at its node's address where nothing else is said. A supervisor that does not listen there is refused by its init step, which is told that address.
func TestSupervisorAsked(t *testing.T) {
	t.Parallel()
	spec := pods(t, find(t, render(t, given(t, matrix["defaults"]...)...), "StatefulSet", "lofamo-supervisor"))
	place := list(spec, "initContainers")[0]
	if args := strings.Join(words(place.at("args")), " "); !strings.Contains(args, "--address $(HOST_IP)") {
		t.Errorf("place is run as %q: want its node's address", args)
	}
	if env := list(place, "env"); !slices.ContainsFunc(env, func(e object) bool {
		return e.text("name") == "HOST_IP" && e.text("valueFrom", "fieldRef", "fieldPath") == "status.hostIP"
	}) {
		t.Errorf("place has the variables %v: want HOST_IP, the node's address", env)
	}
}
