package daemon

import (
	"encoding/json"
	"reflect"
	"testing"
)

// A damaged file or a lying supervisor gives an error, or values that are written and read back alike.
func FuzzJoined(f *testing.F) {
	f.Add([]byte(`{"cluster":"c","node":"n1","preset":"fast","supervisors":[{"id":"s1","report":"10.0.0.1:1"}],"address":"10.0.0.7"}`))
	f.Add([]byte(`{"tRead":"2s","readMisses":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := decodeJoined(b); err == nil {
			again, err := json.Marshal(n)
			if err != nil {
				return // a year beyond 9999
			}
			if m, err := decodeJoined(again); err != nil || !m.At.Equal(n.At) || m.Node != n.Node || m.Address != n.Address {
				t.Errorf("%s is read as %+v, and that as %+v, %v", b, n, m, err)
			}
		}
		if p, err := decodePeriods(string(b)); err == nil {
			again, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if q, err := decodePeriods(string(again)); err != nil || !reflect.DeepEqual(p, q) {
				t.Errorf("%s is read as %+v, and that as %+v, %v", b, p, q, err)
			}
		}
	})
}
