package process

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/pkg/response"
)

// scripted is a BMC that gives the test's answers and records the requests that would reset a system.
type scripted struct {
	root, system, action, task string
	status                     int
	location                   string

	mu     sync.Mutex
	posts  []string // paths
	polled int
}

// maxPolls is the number of polls after which a task is done.
const maxPolls = 2

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	status, body := http.StatusOK, s.system
	switch {
	case r.Method == http.MethodPost:
		_, _ = io.Copy(io.Discard, r.Body)
		s.posts = append(s.posts, r.URL.Path)
		if s.location != "" {
			w.Header().Set("Location", s.location)
		}
		status, body = s.status, s.action
	case r.URL.Path == "/redfish/v1/" || r.URL.Path == "/redfish/v1":
		body = s.root
	case r.URL.Path != powertest.System:
		if s.polled++; s.polled > maxPolls {
			body = `{"TaskState":"Completed"}`
			break
		}
		status, body = http.StatusAccepted, s.task
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// FuzzRedfishAnswers: for any answers of a BMC, the executor requests at most one reset, only below its own system. The
// detail is bounded and printable. It reports neither Succeeded nor Unchanged if the answers leave that open.
func FuzzRedfishAnswers(f *testing.F) {
	const (
		root   = `{"@odata.id":"/redfish/v1/","Id":"RootService","RedfishVersion":"1.15.0","Systems":{"@odata.id":"/redfish/v1/Systems"}}`
		system = `{"@odata.id":"` + powertest.System + `","Id":"1","PowerState":"On","Actions":{"#ComputerSystem.Reset":{"target":"` +
			powertest.System + `/Actions/ComputerSystem.Reset","ResetType@Redfish.AllowableValues":["ForceRestart"]}}}`
	)
	f.Add(root, system, "", "", 204, "")
	f.Add(root, system, `{"TaskState":"Running"}`, `{"TaskState":"Exception","Messages":[{"Message":"\u001b[2Jno"}]}`, 202,
		powertest.TaskMonitor)
	f.Add(root, system, `{"error":{"code":"Base.1.0.GeneralError","message":"x"}}`, "", 400, "")
	f.Add(root, strings.Replace(system, "/Actions/", "/../2/Actions/", 1), "", "", 204, "https://192.0.2.1/x")
	f.Add(`{`, `[]`, "null", "0", 303, "::")
	bmc := &scripted{}
	e := powertest.New(f)
	e.Config.Handler = bmc
	b := BMC{Method: methodRedfish, Address: e.URL, System: powertest.System, Username: "root", CAFile: filepath.Join(e.Dir, "ca.pem"),
		Reset: "ForceRestart"}
	f.Fuzz(func(t *testing.T, root, system, action, task string, status int, location string) {
		if status < 200 || status > 599 || strings.ContainsFunc(location, func(r rune) bool { return r < ' ' || r > '~' }) {
			return // no server can send that
		}
		bmc.mu.Lock()
		bmc.root, bmc.system, bmc.action, bmc.task, bmc.status, bmc.location, bmc.posts, bmc.polled = root, system, action, task, status,
			location, nil, 0
		bmc.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		got := b.redfish(ctx, "calvin")
		bmc.mu.Lock()
		defer bmc.mu.Unlock()
		if len(bmc.posts) > 1 || len(bmc.posts) == 1 && !strings.HasPrefix(bmc.posts[0], powertest.System+"/") {
			t.Fatalf("posted to %q", bmc.posts)
		}
		if strings.ContainsFunc(got.Detail, unicode.IsControl) {
			t.Errorf("detail %q", got.Detail)
		}
		switch posted := len(bmc.posts) == 1; {
		case !posted && got.Outcome != response.Unchanged:
			t.Errorf("nothing was asked for, and it is said: %d, %s", got.Outcome, got.Detail)
		case posted && status < 300 && got.Outcome == response.Unchanged:
			t.Errorf("accepted with %d, and it is said that nothing has changed: %s", status, got.Detail)
		case posted && status >= 300 && got.Outcome == response.Succeeded:
			t.Errorf("refused with %d, and it is said that it is done: %s", status, got.Detail)
		}
	})
}
