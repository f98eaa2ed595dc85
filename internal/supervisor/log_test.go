package supervisor_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// logLines collects a log.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestLogOfNormalStart: a replica that starts, leads and stops logs no warning, and no field twice in a line. Lines of
// etcd do not count: on a busy machine it complains about slow requests.
func TestLogOfNormalStart(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	var out logLines
	s, err := supervisor.New(c.Configs[0], slog.New(slog.NewTextHandler(&out, nil)), supervisor.PatientLease)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.AwaitLeader(t)
	stop(t, s)
	if !strings.Contains(out.String(), "msg=leading") {
		t.Error("the log does not tell that the replica leads")
	}
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "part=etcd") {
			continue
		}
		// A busy machine's disk may take seconds for the first commit.
		if strings.Contains(line, "level=WARN") && !strings.Contains(line, "the store does not accept a commit: retrying") {
			t.Errorf("a warning: %s", line)
		}
		fields := make(map[string]bool)
		for word := range strings.FieldsSeq(line) {
			key, _, ok := strings.Cut(word, "=")
			if ok && fields[key] {
				t.Errorf("field %s twice: %s", key, line)
			}
			fields[key] = true
		}
	}
}
