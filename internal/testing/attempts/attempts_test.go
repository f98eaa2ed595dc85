package attempts

import "testing"

func TestOneAttemptSuffices(t *testing.T) {
	for _, needs := range []int{1, 3} {
		calls := 0
		One(t, 3, "it holds", func() bool { calls++; return calls == needs })
		if calls != needs {
			t.Errorf("%d calls: want %d", calls, needs)
		}
	}
}
