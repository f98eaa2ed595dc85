package half

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/deadline"
)

// If the process that runs checks fails, the reading is UNKNOWN and names the cause, without a state of the
// peripheral.
func TestFailedCheckProcessMakesReadingUnknown(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server http.HandlerFunc // nil: accepts, and does not answer
		want   string
		gone   bool // the half is to ask again soon
	}{
		{"stopped", nil, "does not answer: is it stopped?", false},
		{"died", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "ended", true},
		{"refuses", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no check of that name", http.StatusNotFound)
		}, "no check of that name", false},
		{"babbles", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("what?")) }, "answer", false},
		{"no state", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"state":"WELL"}`)) }, "WELL", false},
		{"no reading", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"state":"FAILED","error":"start check: no such file"}`))
		}, "no such file", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := agenttest.Dir(t)
			l, err := net.Listen("unix", filepath.Join(dir, CheckSocket))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			ctx := t.Context()
			if tc.server != nil {
				srv := &http.Server{Handler: tc.server, ReadHeaderTimeout: time.Minute}
				defer func() { _ = srv.Close() }()
				go func() { _ = srv.Serve(l) }()
			} else {
				var accepted atomic.Bool
				go func() {
					if c, err := l.Accept(); err == nil {
						accepted.Store(true)
						<-t.Context().Done()
						_ = c.Close()
					}
				}()
				ctx = deadline.When(t, accepted.Load)
			}
			r, err := CheckClient(dir)(ctx, fault.ComponentPeripheral0)
			if r.State != fault.Unknown || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%+v, %v: want UNKNOWN and %q", r, err, tc.want)
			}
			if errors.Is(err, sensor.ErrUnavailable) != tc.gone {
				t.Errorf("%v: unavailable: want %t", err, tc.gone)
			}
		})
	}
	if r, err := CheckClient(agenttest.Dir(t))(t.Context(), fault.ComponentPeripheral0); r.State != fault.Unknown ||
		!errors.Is(err, ErrNoChecks) || !errors.Is(err, sensor.ErrUnavailable) {
		t.Errorf("nobody: %+v, %v", r, err)
	}
}
