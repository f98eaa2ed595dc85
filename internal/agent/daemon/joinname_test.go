package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
)

// called returns a function that answers with a host's name.
func called(host string) func() (string, error) {
	return func() (string, error) { return host, nil }
}

// TestEnrolledNodeKeepsItsName: a host that gets another name later stays the same node, with a note.
func TestEnrolledNodeKeepsItsName(t *testing.T) {
	t.Parallel()
	w := newJoinWorld(t, "192.0.2.9:7944")
	w.enrolled(t, "192.0.2.7")
	for _, tc := range []struct {
		given fault.NodeID
		host  string
		note  string
	}{
		{"", "n1", ""},
		{"", "renamed", `the host's name is "renamed" now, and this machine stays node n1`},
		{"", "localhost", `the host's name is "localhost" now`},
		{"n1", "renamed", ""},
		{"n2", "n1", `the configuration's name is "n2" now, and this machine stays node n1`},
	} {
		a := w.j.cfg
		a.Node = tc.given
		got, note, err := joinName(a, called(tc.host))
		if err != nil || got.Node != "n1" || !strings.Contains(note, tc.note) || (note == "") != (tc.note == "") {
			t.Errorf("node %q on host %q: %s, %q, %v: want n1, %q", tc.given, tc.host, got.Node, note, err, tc.note)
		}
	}
	a := w.j.cfg
	a.Node = ""
	nameless := func() (string, error) { return "", errors.New("no name") }
	if got, note, err := joinName(a, nameless); err != nil || got.Node != "n1" || note != "" {
		t.Errorf("a host without a name: %s, %q, %v: want n1", got.Node, note, err)
	}
	a.Node, a.Join.TokenFile = "n2", "" // no evidence at all
	if got, _, err := joinName(a, called("n1")); err != nil || got.Node != "n1" {
		t.Errorf("another name without evidence: %s, %v: want n1", got.Node, err)
	}
	// Evidence that names the node renames it: Kubernetes has another Node object now.
	a.Node, a.Join.TokenFile, a.Join.ServiceAccountTokenFile = "n2", "", "/token"
	if got, note, err := joinName(a, called("n1")); err != nil || got.Node != "n2" || note != "" {
		t.Errorf("another name by Kubernetes: %s, %q, %v: want n2", got.Node, note, err)
	}
}

// TestImageNameBecomesNoNode: only a configured name is an operator's word. The refusal may end by itself, so it does not stop the service.
func TestImageNameBecomesNoNode(t *testing.T) {
	t.Parallel()
	w := newJoinWorld(t, "192.0.2.9:7944")
	a := w.j.cfg
	a.Node = ""
	for _, host := range []string{"localhost", "localhost.localdomain", "ubuntu", "Debian.local", "(none)", ""} {
		_, _, err := joinName(a, called(host))
		if _, final := errors.AsType[*half.ConfigError](err); err == nil || final || !strings.Contains(err.Error(), "key node") ||
			!strings.Contains(err.Error(), `"`+host+`"`) {
			t.Errorf("host %q: %v: want a passing refusal that names it and the key", host, err)
		}
	}
	if got, _, err := joinName(a, called("gpu-7")); err != nil || got.Node != "gpu-7" {
		t.Errorf("host gpu-7: %s, %v", got.Node, err)
	}
	a.Node = "ubuntu"
	if got, _, err := joinName(a, called("gpu-7")); err != nil || got.Node != "ubuntu" || got.ValidateJoin() != nil {
		t.Errorf("a configured name: %s, %v, %v", got.Node, err, got.ValidateJoin())
	}
	a.Node = "localhost"
	if err := a.ValidateJoin(); err == nil || !strings.Contains(err.Error(), "node: given localhost: want a name of its own") {
		t.Errorf("the configured name localhost: %v", err)
	}
}

// TestRenamedHostStartsAsItsNode: the daemon of an enrolled node starts on a host with another name, without a token.
func TestRenamedHostStartsAsItsNode(t *testing.T) {
	t.Parallel()
	w := newJoinWorld(t, "192.0.2.9:7944")
	w.enrolled(t, "192.0.2.7")
	have, err := w.j.stored()
	if err != nil {
		t.Fatal(err)
	}
	have.At = time.Now() // so that it asks nobody
	b, err := json.Marshal(have)
	if err = errors.Join(err, durable.Whole(w.j.file(joinAnswer), b)); err != nil {
		t.Fatal(err)
	}
	a := w.j.cfg
	a.Node = "" // this machine is not called n1
	var log bytes.Buffer
	got, _, _, err := Join(t.Context(), a, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || got.Node != "n1" || strings.Count(log.String(), "this machine stays node n1") != 1 {
		t.Errorf("node %q, %v: want n1, and one note in\n%s", got.Node, err, &log)
	}
	loaded, err := config.LoadAgent(w.j.file(joinAgent), nil)
	if err != nil || loaded.Node != "n1" {
		t.Errorf("the configuration of the halves is that of node %q, %v: want n1", loaded.Node, err)
	}
}
