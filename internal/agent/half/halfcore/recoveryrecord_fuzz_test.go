package halfcore

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// FuzzDecodeRecovery checks that a record is refused as malformed, or has all values in range and the same encoding again.
func FuzzDecodeRecovery(f *testing.F) {
	for _, r := range []RecoveryRecord{
		{Half: fault.HalfHost, State: Stopped},
		{
			Half: fault.HalfDNP, State: GivenUp, PID: 12, Restarts: 5, Budget: 5, Window: time.Minute, Total: 1 << 40,
			Causes: [FailedTest]uint64{1, 2}, Until: 7, Reason: "x",
			Last: &Recovery{Cause: Cause{Kind: Killed, Code: 9, Detail: "y"}, At: 1, Attempt: 2},
		},
	} {
		b, err := r.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"half":1,"state":"running","window_ns":1e400}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecovery(b)
		if err != nil {
			if !errors.Is(err, ErrMalformedRecord) {
				t.Fatalf("%q: %v does not say that it is malformed", b, err)
			}
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatalf("%q is read as %+v, which is not written: %v", b, r, err)
		}
		got, err := DecodeRecovery(again)
		if err != nil && len(again) <= MaxRecoveryRecord {
			t.Fatalf("%q is written as %q: %v", b, again, err)
		}
		if twice, _ := got.Encode(); err == nil && !reflect.DeepEqual(twice, again) {
			t.Fatalf("%q, then %q", again, twice)
		}
	})
}
