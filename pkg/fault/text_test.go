package fault

import "testing"

func TestPlural(t *testing.T) {
	for want, got := range map[string]string{
		"0 nodes": Plural(0, "node"), "1 node": Plural(uint32(1), "node"), "2 nodes": Plural(uint64(2), "node"),
		"1 retry": Plural(1, "retry"), "3 retries": Plural(3, "retry"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestList(t *testing.T) {
	for want, got := range map[string]string{
		"": List[string](nil), "node": List([]string{"node"}), "SICK, FAILED": List([]State{Sick, Failed}),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
