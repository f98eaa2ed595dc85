package store

import "testing"

func TestHistoryIsTrimmedWithSlack(t *testing.T) {
	o := Options{KeepEvents: 100, HistoryBytes: 1000}
	for _, tc := range []struct {
		what          string
		next          head
		before, aged  uint64
		oldest, bytes uint64
	}{
		{"nothing yet", head{Next: 1, Oldest: 1}, 1, 0, 1, 0},
		{"room", head{Next: 100, Oldest: 1, Bytes: 990}, 98, 0, 1, 990},
		{"within the slack", head{Next: 104, Oldest: 1, Bytes: 1030}, 98, 0, 1, 1030},
		{"too many", head{Next: 201, Oldest: 1, Bytes: 1000}, 198, 0, 101, 500},
		{"too large", head{Next: 51, Oldest: 1, Bytes: 2000}, 50, 0, 26, 1000},
		{"too old", head{Next: 51, Oldest: 1, Bytes: 500}, 50, 11, 11, 400},
		{"all too old", head{Next: 51, Oldest: 1, Bytes: 500}, 51, 51, 51, 0},
		{"not what is put now", head{Next: 1001, Oldest: 1, Bytes: 1000}, 2, 0, 2, 999},
		{"not all at once", head{Next: 50_001, Oldest: 1, Bytes: 500}, 50_000, 0, 513, 495},
		{"many new ones within the slack of busy commits", head{Next: 125, Oldest: 1, Bytes: 1200}, 50, 20, 1, 1200},
		{"many new ones beyond it", head{Next: 1101, Oldest: 1, Bytes: 1100}, 1031, 0, 141, 960},
		{"younger than the oldest", head{Next: 51, Oldest: 20, Bytes: 500}, 50, 5, 20, 500},
	} {
		if oldest, bytes := trim(o, tc.next, tc.before, tc.aged); oldest != tc.oldest || bytes != tc.bytes {
			t.Errorf("%s: from %d, %d bytes; want from %d, %d bytes", tc.what, oldest, bytes, tc.oldest, tc.bytes)
		}
	}
}
