package command

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestPageHasSameWords: the page for browsers says each phrase as lofamoctl does, for a torus and for an ordinary cluster.
func TestPageHasSameWords(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "web", "src", "words.ts"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^  (\w+): (?:'(.*)'|"(.*)"),$`)
	for name, words := range map[string]Words{"torus": torusWords, "ordinary": ordinaryWords} {
		_, table, _ := strings.Cut(string(b), "const "+name+": Words = {")
		table, _, _ = strings.Cut(table, "\n}")
		page := map[string]string{}
		for _, m := range line.FindAllStringSubmatch(table, -1) {
			page[strings.ToLower(m[1])] = m[2] + m[3]
		}
		v := reflect.ValueOf(words)
		for i := range v.NumField() {
			field := v.Type().Field(i).Name
			if said, ok := page[strings.ToLower(field)]; !ok || said != v.Field(i).String() {
				t.Errorf("%s, %s: the page says %q, lofamoctl %q", name, field, said, v.Field(i))
			}
		}
		if len(page) != v.NumField() {
			t.Errorf("%s: the page has %d phrases, lofamoctl %d", name, len(page), v.NumField())
		}
	}
}

// TestOrdinaryWordsHaveNoTorus: readers without a torus meet none of its terms.
func TestOrdinaryWordsHaveNoTorus(t *testing.T) {
	v := reflect.ValueOf(ordinaryWords)
	for i := range v.NumField() {
		if term := regexp.MustCompile(`(?i)torus|DNP|plane|rail|spare|halves|tray`).FindString(v.Field(i).String()); term != "" {
			t.Errorf("%s has %q: %s", v.Type().Field(i).Name, term, v.Field(i))
		}
	}
}

// TestDeadLeaderIsNotCalledLeader: a stale answer has the last leader, which may be what died.
func TestDeadLeaderIsNotCalledLeader(t *testing.T) {
	for _, tc := range []struct {
		info *lofamov1.ClusterInfo
		want string
	}{
		{&lofamov1.ClusterInfo{Leader: "s2"}, "leader s2"},
		{&lofamov1.ClusterInfo{Leader: "s2", Stale: true}, "no leader (the last was s2)"},
		{&lofamov1.ClusterInfo{Stale: true}, "no leader"},
	} {
		if got := Leader(tc.info); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.info, got, tc.want)
		}
	}
}

// TestAlarmOfClusterIsNoIllnessOfSupervisor: the leader shows an open circuit breaker, and is well.
func TestAlarmOfClusterIsNoIllnessOfSupervisor(t *testing.T) {
	for _, tc := range []struct {
		state  lofamov1.State
		alarms []string
		want   bool
	}{
		{lofamov1.State_NORMAL, nil, false},
		{lofamov1.State_NORMAL, []string{"response breaker open: 9 nodes"}, false},
		{lofamov1.State_NORMAL, []string{"region cut off: west"}, false},
		{lofamov1.State_NORMAL, []string{"response breaker open: 9 nodes", "store full"}, true},
		{lofamov1.State_FAILED, nil, true},
	} {
		if got := Unhealthy(&lofamov1.Supervisor{State: tc.state, Alarms: tc.alarms}); got != tc.want {
			t.Errorf("%v %v: %v, want %v", tc.state, tc.alarms, got, tc.want)
		}
	}
}
