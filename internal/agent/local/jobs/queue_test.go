package jobs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The queue holds equal mails once, and keeps an arrival regardless of later mails.
func TestQueueHoldsEqualMailsOnce(t *testing.T) {
	k, other := Key{Generation: 1}, Key{Generation: 2}
	ask, arrived, leave := Mail{Kind: Arrive, Key: k}, Mail{Kind: Arrive, Key: k, Flag: true}, Mail{Kind: Leave, Key: k}
	raise := Mail{Kind: Raise, Request: 7}
	for _, tc := range []struct {
		name      string
		add, want []Mail
	}{
		{"twice", []Mail{ask, raise, ask, raise}, []Mail{ask, raise}},
		{"the later word counts", []Mail{ask, leave}, []Mail{leave}},
		{"and comes back", []Mail{leave, ask, arrived}, []Mail{arrived}},
		{"an arrival is said", []Mail{arrived, leave, arrived}, []Mail{arrived, arrived}},
		{"before who leaves", []Mail{arrived, leave}, []Mail{arrived, leave}},
		{"another one", []Mail{ask, {Kind: Leave, Key: other}, {Kind: Raise, Request: 8}, raise},
			[]Mail{ask, {Kind: Leave, Key: other}, {Kind: Raise, Request: 8}, raise}},
	} {
		var q Queue
		for _, m := range tc.add {
			if !q.Add(m) {
				t.Errorf("%s: no room", tc.name)
			}
		}
		var got []Mail
		q.Send(func(m Mail) bool { got = append(got, m); return true })
		if diff := cmp.Diff(tc.want, got); diff != "" || q.Len() != 0 {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

func TestFullQueueDropsAndCounts(t *testing.T) {
	var q Queue
	for i := range uint64(maxQueue + 3) {
		if q.Add(Mail{Kind: Raise, Request: i}) != (i < maxQueue) {
			t.Errorf("mail %d", i)
		}
	}
	n := 0
	q.Send(func(Mail) bool { n++; return n < 10 })
	if q.Dropped() != 3 || q.Len() != maxQueue-9 {
		t.Errorf("%d dropped, %d wait", q.Dropped(), q.Len())
	}
}
