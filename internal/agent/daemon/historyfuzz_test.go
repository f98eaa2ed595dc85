package daemon

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/fault"
)

// FuzzDecodeRecovery checks that a damaged recovery file is refused, or that the history for the next daemon is in
// range. Above all it must name one process, not many.
func FuzzDecodeRecovery(f *testing.F) {
	const boot = "0123"
	for _, h := range []halfcore.RecoveryHistory{
		{Record: halfcore.RecoveryRecord{Half: fault.HalfHost, State: halfcore.Running, PID: 7}, RestartsAgo: []time.Duration{1, 2}, Failures: 1,
			Start: 9, Space: 4},
		{Record: halfcore.RecoveryRecord{Half: fault.HalfHost, State: halfcore.Restarting, PID: -1,
			Last: &halfcore.Recovery{Cause: halfcore.Cause{Kind: halfcore.Hung}}}},
	} {
		b, err := json.Marshal(recoveryFile{Boot: boot, History: h})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"boot":"0123","history":{"record":{"half":1,"state":"running"},"failures":-1}}`))
	f.Add([]byte(`{"boot":"0123","history":{"record":{"half":"host","state":"running","pid":7},"restarts_at_ns":[]}}`))
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
		twice, err := decodeRecovery(again, fault.HalfHost, boot)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", b, again, err)
		}
		if third, err := json.Marshal(recoveryFile{Boot: boot, History: *twice}); err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%q, then %q, %v", again, third, err)
		}
	})
}
