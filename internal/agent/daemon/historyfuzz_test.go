package daemon

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/pkg/fault"
)

// FuzzDecodeRecovery checks that a damaged recovery file is refused, or that the history for the next daemon is in
// range. Above all it must name one process, not many.
func FuzzDecodeRecovery(f *testing.F) {
	const boot = "0123"
	for _, h := range []recovery.History{
		{Record: recovery.Record{Half: fault.HalfHost, State: recovery.Running, PID: 7}, RestartsAt: []int64{1, 2}, Failures: 1, Start: 9, Space: 4},
		{Record: recovery.Record{Half: fault.HalfHost, State: recovery.Restarting, PID: -1, Last: &recovery.Recovery{Cause: recovery.Cause{Kind: recovery.Hung}}}},
	} {
		b, err := json.Marshal(recoveryFile{Boot: boot, History: h})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"boot":"0123","history":{"record":{"half":1,"state":"running"},"failures":-1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeRecovery(b, fault.HalfHost, boot)
		if err != nil || got == nil {
			return
		}
		if r := got.Record; r.Half != fault.HalfHost || !r.State.Valid() || r.PID < 0 || got.Failures < 0 {
			t.Fatalf("%q is taken as %+v", b, got)
		}
		again, err := json.Marshal(recoveryFile{Boot: boot, History: *got})
		if err != nil {
			t.Fatalf("%q is taken as %+v, which is not written: %v", b, got, err)
		}
		if twice, err := decodeRecovery(again, fault.HalfHost, boot); err != nil || !reflect.DeepEqual(twice, got) {
			t.Fatalf("%+v, and written and read again %+v, %v", got, twice, err)
		}
	})
}
