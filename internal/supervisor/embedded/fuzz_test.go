package embedded

import "testing"

// FuzzDatabaseEntries: an entry of a damaged database is refused or read, and never panics.
func FuzzDatabaseEntries(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x02_\x00\x00\x00\x00\x00\x00\x00\x00"), []byte("\x0a\x01x\x18\x02"))
	f.Add([]byte("8e9e05c52164694d"), []byte(`{"name":"s1"}`))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		_ = checkRevision(key, value)
		var c dbContent
		if err := c.addMember(key, value); err != nil && len(c.members) > 0 {
			t.Errorf("a refused member is known: %v", c.members)
		}
	})
}
