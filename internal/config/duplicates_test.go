package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAddressGivenTwiceIsNamed: the sockets and links of one machine are refused. Addresses that two nodes, spares, replicas
// or supervisors share are only named, because files of earlier versions may have them.
func TestAddressGivenTwiceIsNamed(t *testing.T) {
	for _, tc := range []struct {
		change func(*Agent, *Supervisor)
		want   string
		starts bool
	}{
		{func(_ *Agent, s *Supervisor) { s.Nodes[1].Service = s.Nodes[0].Service }, "nodes[1].service: given 10.0.0.1:7000: want an address " +
			"other than that of nodes[0].service", true},
		{func(_ *Agent, s *Supervisor) { s.Spares[0].Service = s.Nodes[0].Service }, "spares[0].service: given 10.0.0.1:7000: want an address " +
			"other than that of nodes[0].service", true},
		{func(_ *Agent, s *Supervisor) {
			s.Replicas = append(s.Replicas, s.Replicas[0])
			s.Replicas[len(s.Replicas)-1].ID = "twin"
		},
			"].grpc: given ", true},
		{func(a *Agent, _ *Supervisor) {
			l := a.Links["X+"]
			l.Peer = a.Links["X-"].Peer
			a.Links["X+"] = l
		}, ".peer: given ", false},
		{func(a *Agent, _ *Supervisor) {
			twin := a.Supervisors[0]
			twin.ID = "twin"
			a.Supervisors = append(a.Supervisors, twin)
		}, "].report: given ", true},
		{func(a *Agent, _ *Supervisor) { a.HTTP = a.Service.GossipListen }, "http: given ", false},
		{func(a *Agent, _ *Supervisor) { a.HTTP = a.Links["X-"].Local }, "links.X-.local: given ", true},
		{func(a *Agent, _ *Supervisor) {
			a.Window = WindowConfig{Listen: "192.0.2.1:7960", Peer: "192.0.2.2:7960"}
			a.HTTP = a.Window.Listen
		}, "window.listen: given ", true},
	} {
		a, s := goodAgent(t), goodSupervisor(t)
		tc.change(&a, &s)
		refused, shared := errors.Join(a.Validate(), s.Validate()), errors.Join(a.SharedAddresses(), s.SharedAddresses())
		if starts := refused == nil; starts != tc.starts {
			t.Errorf("%s: a start with it is refused by %v", tc.want, refused)
		}
		text := fmt.Sprint(errors.Join(refused, shared))
		if !strings.Contains(text, tc.want) || !strings.Contains(text, "want an address other than that of ") {
			t.Errorf("error %q: want %q", text, tc.want)
		}
	}
}

// TestIgnoredLabelIsReportedAndDoesNotPreventStart: earlier versions accepted the label notice.
func TestIgnoredLabelIsReportedAndDoesNotPreventStart(t *testing.T) {
	s := goodSupervisor(t)
	s.Responses.Executors.Alertmanager = &Alertmanagers{URLs: []string{"http://127.0.0.1:1"}, Labels: map[string]string{"notice": "x"}}
	if err := s.Validate(); err != nil {
		t.Errorf("a start is refused by %v", err)
	}
	err := s.IgnoredLabels()
	if want := "responses.executors.alertmanager.labels.notice: given notice: want a "; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v: want %q", err, want)
	}
	s.Responses.Executors.Alertmanager.Labels = map[string]string{"site": "x"}
	if err := s.IgnoredLabels(); err != nil {
		t.Error(err)
	}
}

// TestDurationErrorNamesItsKey: also inside lists and mappings.
func TestDurationErrorNamesItsKey(t *testing.T) {
	for text, want := range map[string]string{
		"recovery: {window: 5}\n":                           `recovery.window: duration 5: want a string with a unit`,
		"selfTest: {interval: soon}\n":                      `selfTest.interval: duration "soon": want a number with a unit`,
		"sensors: {peripherals: [{interval: 5 minutes}]}\n": `sensors.peripherals[0].interval: duration "5 minutes"`,
	} {
		file := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadAgent(file, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
