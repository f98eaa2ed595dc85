package power

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// emulator is a Redfish service with one ComputerSystem, after the DMTF's schemas: ServiceRoot v1_15_0, ComputerSystem v1_20_0, Task
// v1_7_0, and the protocol's answers (DSP0266 1.20: authentication, actions, asynchronous operations, errors).
type emulator struct {
	*httptest.Server
	dir string

	mu     sync.Mutex
	resets []string // as they were carried out
	power  string
	looks  int // at the task

	// What goes wrong; zero values: nothing.
	status   int           // of the answer to a reset, which is not carried out
	late     int           // of the answer to one that is carried out all the same
	hang     chan struct{} // the answer to a reset, which is carried out, waits for it
	drop     bool          // the connection is closed instead of an answer, and the reset carried out
	task     []string      // states of the task that a reset becomes, the last for ever
	monitor  string        // where the task is said to be; empty: at its monitor
	onlyCode bool          // the monitor answers by status alone
	at       string        // where the reset is said to be; empty: where it is
	redirect string        // where the system is said to be
	allowed  []string
}

const (
	root    = "/redfish/v1/"
	system  = "/redfish/v1/Systems/437XR1138R2"
	action  = system + "/Actions/ComputerSystem.Reset"
	monitor = "/redfish/v1/TaskService/TaskMonitors/545"
)

func newEmulator(t *testing.T) *emulator {
	e := &emulator{dir: t.TempDir(), power: "On", allowed: []string{"On", "ForceOff", "GracefulRestart", "ForceRestart", "PowerCycle"}}
	e.Server = httptest.NewTLSServer(e)
	t.Cleanup(func() {
		e.CloseClientConnections()
		e.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
	for name, text := range map[string][]byte{"ca.pem": ca, "password": []byte("calvin\n")} {
		if err := os.WriteFile(filepath.Join(e.dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// bmc is the emulator as it is configured.
func (e *emulator) bmc() BMC {
	return BMC{
		Method: methodRedfish, Address: e.URL, System: system, Username: "root", PasswordFile: filepath.Join(e.dir, "password"), CAFile: filepath.Join(e.dir, "ca.pem"),
	}
}

func (e *emulator) carriedOut() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.resets)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("OData-Version", "4.0")
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body)
	}
}

// fail answers as the protocol has errors.
func fail(w http.ResponseWriter, status int, id, text string) {
	answer(w, status, map[string]any{"error": map[string]any{
		"code": "Base.1.18." + id, "message": text,
		"@Message.ExtendedInfo": []any{map[string]any{"@odata.type": "#Message.v1_1_2.Message", "MessageId": "Base.1.18." + id, "Message": text, "Severity": "Critical"}},
	}})
}

func (e *emulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == root { // needs no authentication
		answer(w, 200, map[string]any{
			"@odata.id": root, "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService", "Name": "Root Service", "RedfishVersion": "1.20.0",
			"UUID": "92384634-2938-2342-8820-489239905423", "Systems": map[string]any{"@odata.id": "/redfish/v1/Systems"},
			"Tasks": map[string]any{"@odata.id": "/redfish/v1/TaskService"}, "Links": map[string]any{"Sessions": map[string]any{"@odata.id": "/redfish/v1/SessionService/Sessions"}},
		})
		return
	}
	if user, password, ok := r.BasicAuth(); !ok || user != "root" || password != "calvin" {
		w.Header().Set("WWW-Authenticate", `Basic realm="RedfishService"`)
		fail(w, 401, "NoValidSession", "There is no valid session established with the implementation.")
		return
	}
	switch {
	case r.URL.Path == system && r.Method == http.MethodGet && e.redirect != "":
		http.Redirect(w, r, e.redirect, http.StatusTemporaryRedirect)
	case r.URL.Path == system && r.Method == http.MethodGet:
		e.mu.Lock()
		power := e.power
		e.mu.Unlock()
		answer(w, 200, map[string]any{
			"@odata.id": system, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": "437XR1138R2", "Name": "WebFrontEnd483", "SystemType": "Physical",
			"SerialNumber": "437XR1138R2", "PowerState": power, "Status": map[string]any{"State": "Enabled", "Health": "OK"},
			"Actions": map[string]any{
				"#ComputerSystem.Reset":               map[string]any{"target": e.target(), "ResetType@Redfish.AllowableValues": e.allowed},
				"#ComputerSystem.RemoveResourceBlock": map[string]any{"target": system + "/Actions/ComputerSystem.RemoveResourceBlock"},
			},
		})
	case r.URL.Path == action && r.Method == http.MethodPost:
		e.reset(w, r)
	case strings.HasSuffix(r.URL.Path, "RemoveResourceBlock"):
		e.mu.Lock()
		e.resets = append(e.resets, "another action")
		e.mu.Unlock()
		answer(w, 204, nil)
	case r.URL.Path == monitor && r.Method == http.MethodGet && len(e.task) > 0:
		e.progress(w)
	default:
		fail(w, 404, "ResourceMissingAtURI", fmt.Sprintf("The resource at the URI '%s' was not found.", r.URL.Path))
	}
}

func (e *emulator) target() string {
	if e.at != "" {
		return e.at
	}
	return action
}

func (e *emulator) reset(w http.ResponseWriter, r *http.Request) {
	var in struct{ ResetType string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || !slices.Contains(e.allowed, in.ResetType) {
		fail(w, 400, "ActionParameterNotSupported", "The value for ResetType is not supported.")
		return
	}
	if e.status != 0 {
		fail(w, e.status, "GeneralError", "A general error has occurred.")
		return
	}
	e.mu.Lock()
	e.resets = append(e.resets, in.ResetType)
	e.mu.Unlock()
	switch {
	case e.hang != nil:
		<-e.hang
	case e.drop:
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.Close()
		}
		return
	case e.late >= 300 && e.late < 400:
		w.Header().Set("Location", system)
		answer(w, e.late, nil)
		return
	case e.late != 0:
		fail(w, e.late, "InternalError", "The request failed due to an internal service error.")
		return
	case len(e.task) > 0:
		at := e.monitor
		if at == "" {
			at = monitor
		}
		w.Header().Set("Location", at)
		answer(w, 202, e.taskBody(e.task[0]))
		return
	}
	answer(w, 204, nil)
}

func (e *emulator) taskBody(state string) map[string]any {
	return map[string]any{
		"@odata.id": "/redfish/v1/TaskService/Tasks/545", "@odata.type": "#Task.v1_7_0.Task", "Id": "545", "Name": "Task 545", "TaskMonitor": monitor, "TaskState": state,
		"TaskStatus": "OK", "Messages": []any{map[string]any{"MessageId": "Base.1.18.GeneralError", "Message": "power supply does not answer"}},
	}
}

func (e *emulator) progress(w http.ResponseWriter) {
	e.mu.Lock()
	e.looks++
	state := e.task[min(e.looks, len(e.task)-1)]
	e.mu.Unlock()
	switch {
	case state == "Completed" && e.onlyCode:
		answer(w, 204, nil)
	case state == "Exception" && e.onlyCode:
		fail(w, 500, "InternalError", "The request failed due to an internal service error.")
	case state == "Running" || state == "New":
		answer(w, 202, e.taskBody(state))
	default:
		answer(w, 200, e.taskBody(state))
	}
}
