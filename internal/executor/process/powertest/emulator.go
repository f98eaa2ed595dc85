// Package powertest provides a Redfish service for tests that records the resets it carries out.
package powertest

import (
	"cmp"
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

// Emulator is a Redfish service with one ComputerSystem, according to the DMTF's schemas: ServiceRoot v1_15_0,
// ComputerSystem v1_20_0, Task v1_7_0, and the protocol's answers (DSP0266 1.20: authentication, actions, asynchronous
// operations, errors).
type Emulator struct {
	*httptest.Server
	Dir string // holds ca.pem, for its certificate, and the password of the user root

	mu       sync.Mutex
	resets   []string // in the order of execution
	power    string
	health   string
	looks    int // polls of the task
	log      []Entry
	newest   bool // the event log lists its newest entries first
	sensors  []Sensor
	modern   []map[string]any            // members of the Sensors collection, which stands in for Thermal and Power; nil: these two
	expands  bool                        // the service supports $expand
	instead  map[string]http.HandlerFunc // by path
	requests int
	others   int // requests that would change something, beside resets

	// Faults to simulate; zero values mean none.
	Status   int           // status of the answer to a reset that is not carried out
	Late     int           // status of the answer to a reset that is carried out anyway
	Hang     chan struct{} // the answer to a reset, which is carried out, waits for it
	Drop     bool          // closes the connection instead of answering, and carries out the reset
	Task     []string      // states of the task that a reset becomes, the last for ever
	Monitor  string        // claimed location of the task; empty: its monitor
	OnlyCode bool          // the monitor answers by status alone
	At       string        // claimed location of the reset; empty: the real one
	Redirect string        // claimed location of the system
	Allowed  []string      // supported ResetTypes
}

// Paths of the service.
const (
	root        = "/redfish/v1/"
	System      = "/redfish/v1/Systems/437XR1138R2" // the only system
	action      = System + "/Actions/ComputerSystem.Reset"
	TaskMonitor = "/redfish/v1/TaskService/TaskMonitors/545"
)

// New starts an emulator that stops with the test.
func New(t testing.TB) *Emulator {
	e := &Emulator{Dir: t.TempDir(), power: "On", health: "OK", instead: map[string]http.HandlerFunc{},
		Allowed: []string{"On", "ForceOff", "GracefulRestart", "ForceRestart", "PowerCycle"}}
	e.Server = httptest.NewTLSServer(e)
	t.Cleanup(func() {
		e.CloseClientConnections()
		e.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
	for name, text := range map[string][]byte{"ca.pem": ca, "password": []byte("calvin\n")} {
		if err := os.WriteFile(filepath.Join(e.Dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// CarriedOut returns the resets that were carried out, in order.
func (e *Emulator) CarriedOut() []string {
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

// fail answers with an error in the protocol's format.
func fail(w http.ResponseWriter, status int, id, text string) {
	answer(w, status, map[string]any{"error": map[string]any{
		"code": "Base.1.18." + id, "message": text,
		"@Message.ExtendedInfo": []any{map[string]any{"@odata.type": "#Message.v1_1_2.Message", "MessageId": "Base.1.18." + id,
			"Message": text, "Severity": "Critical"}},
	}})
}

// ServeHTTP implements http.Handler.
func (e *Emulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := e.override(r); h != nil {
		h(w, r)
		return
	}
	if r.URL.Path == root { // needs no authentication
		e.mu.Lock()
		expands := e.expands
		e.mu.Unlock()
		answer(w, 200, map[string]any{
			"ProtocolFeaturesSupported": map[string]any{"ExpandQuery": map[string]any{"NoLinks": expands}},
			"@odata.id":                 root, "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService", "Name": "Root Service",
			"RedfishVersion": "1.20.0",
			"UUID":           "92384634-2938-2342-8820-489239905423", "Systems": map[string]any{"@odata.id": "/redfish/v1/Systems"},
			"Tasks": map[string]any{"@odata.id": "/redfish/v1/TaskService"},
			"Links": map[string]any{"Sessions": map[string]any{"@odata.id": "/redfish/v1/SessionService/Sessions"}},
		})
		return
	}
	if user, password, ok := r.BasicAuth(); !ok || user != "root" || password != "calvin" {
		w.Header().Set("WWW-Authenticate", `Basic realm="RedfishService"`)
		fail(w, 401, "NoValidSession", "There is no valid session established with the implementation.")
		return
	}
	switch {
	case r.URL.Path == System && r.Method == http.MethodGet && e.Redirect != "":
		http.Redirect(w, r, e.Redirect, http.StatusTemporaryRedirect)
	case r.URL.Path == System && r.Method == http.MethodGet:
		e.mu.Lock()
		power, health := e.power, e.health
		e.mu.Unlock()
		answer(w, 200, map[string]any{
			"@odata.id": System, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": "437XR1138R2", "Name": "WebFrontEnd483",
			"SystemType":   "Physical",
			"SerialNumber": "437XR1138R2", "PowerState": power, "Status": map[string]any{"State": "Enabled", "Health": health},
			"LogServices": id(logServices), "Links": map[string]any{"Chassis": []any{id(Chassis)}},
			"Actions": map[string]any{
				"#ComputerSystem.Reset":               map[string]any{"target": e.target(), "ResetType@Redfish.AllowableValues": e.Allowed},
				"#ComputerSystem.RemoveResourceBlock": map[string]any{"target": System + "/Actions/ComputerSystem.RemoveResourceBlock"},
			},
		})
	case r.Method == http.MethodGet && e.evidence(w, r):
	case r.URL.Path == action && r.Method == http.MethodPost:
		e.reset(w, r)
	case strings.HasSuffix(r.URL.Path, "RemoveResourceBlock"):
		e.mu.Lock()
		e.resets = append(e.resets, "another action")
		e.mu.Unlock()
		answer(w, 204, nil)
	case r.URL.Path == TaskMonitor && r.Method == http.MethodGet && len(e.Task) > 0:
		e.progress(w)
	default:
		fail(w, 404, "ResourceMissingAtURI", fmt.Sprintf("The resource at the URI '%s' was not found.", r.URL.Path))
	}
}

func (e *Emulator) target() string {
	if e.At != "" {
		return e.At
	}
	return action
}

func (e *Emulator) reset(w http.ResponseWriter, r *http.Request) {
	var in struct{ ResetType string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || !slices.Contains(e.Allowed, in.ResetType) {
		fail(w, 400, "ActionParameterNotSupported", "The value for ResetType is not supported.")
		return
	}
	if e.Status != 0 {
		fail(w, e.Status, "GeneralError", "A general error has occurred.")
		return
	}
	e.mu.Lock()
	e.resets = append(e.resets, in.ResetType)
	e.mu.Unlock()
	switch {
	case e.Hang != nil:
		<-e.Hang
	case e.Drop:
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.Close()
		}
		return
	case e.Late >= 300 && e.Late < 400:
		w.Header().Set("Location", System)
		answer(w, e.Late, nil)
		return
	case e.Late != 0:
		fail(w, e.Late, "InternalError", "The request failed due to an internal service error.")
		return
	case len(e.Task) > 0:
		at := e.Monitor
		at = cmp.Or(at, TaskMonitor)
		w.Header().Set("Location", at)
		answer(w, 202, e.taskBody(e.Task[0]))
		return
	}
	answer(w, 204, nil)
}

func (e *Emulator) taskBody(state string) map[string]any {
	return map[string]any{
		"@odata.id": "/redfish/v1/TaskService/Tasks/545", "@odata.type": "#Task.v1_7_0.Task", "Id": "545", "Name": "Task 545",
		"TaskMonitor": TaskMonitor, "TaskState": state,
		"TaskStatus": "OK", "Messages": []any{map[string]any{"MessageId": "Base.1.18.GeneralError", "Message": "power supply does not answer"}},
	}
}

func (e *Emulator) progress(w http.ResponseWriter) {
	e.mu.Lock()
	e.looks++
	state := e.Task[min(e.looks, len(e.Task)-1)]
	e.mu.Unlock()
	switch {
	case state == "Completed" && e.OnlyCode:
		answer(w, 204, nil)
	case state == "Exception" && e.OnlyCode:
		fail(w, 500, "InternalError", "The request failed due to an internal service error.")
	case state == "Running" || state == "New":
		answer(w, 202, e.taskBody(state))
	default:
		answer(w, 200, e.taskBody(state))
	}
}
