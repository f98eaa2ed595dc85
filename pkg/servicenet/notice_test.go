package servicenet

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// restartNotice draws a notice that its encoding does not change.
func restartNotice(t *rapid.T) fault.RestartNotice {
	half := fault.Half(rapid.IntRange(0, 2).Draw(t, "restarted half"))
	if half == 0 {
		return fault.RestartNotice{}
	}
	return fault.RestartNotice{Half: half, Within: time.Duration(rapid.IntRange(0, int(fault.MaxRestart.Milliseconds())).Draw(t,
		"within")) * time.Millisecond}
}

// TestRestartNoticeIsBounded: a notice is never longer than fault.MaxRestart, only 0 ends a restart, and an unknown
// half announces nothing.
func TestRestartNoticeIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		sent *lofamov1.RestartNotice
		want fault.RestartNotice
	}{
		"none": {nil, fault.RestartNotice{}},
		"host": {&lofamov1.RestartNotice{Half: lofamov1.Half_HALF_HOST, WithinMs: 1500},
			fault.RestartNotice{Half: fault.HalfHost, Within: 1500 * time.Millisecond}},
		"over": {&lofamov1.RestartNotice{Half: lofamov1.Half_HALF_DNP}, fault.RestartNotice{Half: fault.HalfDNP}},
		"too long": {&lofamov1.RestartNotice{Half: lofamov1.Half_HALF_DNP, WithinMs: 1<<32 - 1},
			fault.RestartNotice{Half: fault.HalfDNP, Within: fault.MaxRestart}},
		"no half":   {&lofamov1.RestartNotice{WithinMs: 5}, fault.RestartNotice{}},
		"later":     {&lofamov1.RestartNotice{Half: 3, WithinMs: 5}, fault.RestartNotice{}},
		"negative":  {&lofamov1.RestartNotice{Half: -1, WithinMs: 5}, fault.RestartNotice{}},
		"very late": {&lofamov1.RestartNotice{Half: 258, WithinMs: 5}, fault.RestartNotice{}},
	} {
		m := EncodeReport(sampleReport())
		m.Restart = tc.sent
		if r, err := parsed(m); err != nil || r.Restart != tc.want {
			t.Errorf("%s: %+v, %v: want %+v", name, r.Restart, err, tc.want)
		}
	}
	r := sampleReport()
	r.Restart = fault.RestartNotice{Half: fault.HalfDNP, Within: time.Microsecond}
	if m := EncodeReport(r).GetRestart(); m.GetWithinMs() != 1 {
		t.Errorf("a microsecond is sent as %d ms: want 1, since 0 ends the restart", m.GetWithinMs())
	}
	r.Restart.Within = time.Second
	for held, want := range map[time.Duration]time.Duration{0: time.Second, 400 * time.Millisecond: 600 * time.Millisecond,
		time.Hour: time.Millisecond} {
		if got := aged(r, held).Restart.Within; got != want {
			t.Errorf("after %s in the log %s are left: want %s", held, got, want)
		}
	}
	r.Restart.Within = 0
	if got := aged(r, time.Second).Restart; got != r.Restart {
		t.Errorf("the end of a restart has become %+v", got)
	}
}
