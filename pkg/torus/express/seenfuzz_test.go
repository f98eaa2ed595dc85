package express

import (
	"testing"
	"time"
)

// FuzzSeenRestore: any copy restores at most the bounded number of IDs, and storing them again gives the same copy.
func FuzzSeenRestore(f *testing.F) {
	f.Add(make([]byte, 2*idSize))
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s, again seen
		now := time.Unix(1, 0)
		s.restore(now, b)
		if s.changed || len(s.last) > keptIDs || len(s.cur) > generation {
			t.Fatalf("%d bytes: %d IDs, %d of them kept, changed %t", len(b), len(s.cur), len(s.last), s.changed)
		}
		s.changed = true
		again.restore(now, s.changes())
		for _, id := range s.last {
			if !s.has(id) || !again.has(id) {
				t.Fatalf("%v is forgotten", id)
			}
		}
	})
}
