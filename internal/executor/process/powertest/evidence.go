package powertest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Paths of the resources that a witness reads.
const (
	logServices = System + "/LogServices"
	logService  = logServices + "/SEL"
	Entries     = logService + "/Entries" // the event log, in pages of PageSize entries
	Chassis     = "/redfish/v1/Chassis/1U"
	Sensors     = Chassis + "/Sensors" // in pages of PageSize sensors
)

// PageSize is the number of entries in one page of the event log.
const PageSize = 50

// Entry is an entry of the event log.
type Entry struct{ ID, Created, Severity, Message string }

// Sensor is a temperature.
type Sensor struct {
	Name    string
	Celsius float64
	Health  string
}

// Set sets the power state and health of the system.
func (e *Emulator) Set(power, health string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.power, e.health = power, health
}

// Log adds entries to the event log.
func (e *Emulator) Log(entries ...Entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, entries...)
}

// NewestFirst makes the event log list its newest entries first.
func (e *Emulator) NewestFirst() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.newest = true
}

// Forget deletes the n oldest entries of the event log, as a full log does.
func (e *Emulator) Forget(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = slices.Delete(e.log, 0, n)
}

// Sensors sets the temperatures of the chassis.
func (e *Emulator) Sensors(all ...Sensor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sensors = all
}

// Collection replaces Thermal and Power by a Sensors collection with these members (Sensor v1_10_0). expands: the service supports $expand.
func (e *Emulator) Collection(expands bool, members ...map[string]any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expands, e.modern = expands, append([]map[string]any{}, members...)
}

// collection answers requests for the Sensors collection and its members; false for other paths.
func (e *Emulator) collection(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != Sensors {
		i, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, Sensors+"/"))
		if err != nil || i < 0 || i >= len(e.modern) {
			return false
		}
		answer(w, 200, e.modern[i])
		return true
	}
	q := r.URL.Query()
	expand := q.Get("$expand") == "."
	if q.Has("$expand") && !e.expands {
		fail(w, 501, "QueryNotSupported", "Querying is not supported by the implementation.")
		return true
	}
	from, _ := strconv.Atoi(q.Get("$skip"))
	from = max(0, min(from, len(e.modern)))
	end := min(from+PageSize, len(e.modern))
	members := []any{}
	for i, m := range e.modern[from:end] {
		if expand {
			members = append(members, m)
		} else {
			members = append(members, id(fmt.Sprintf("%s/%d", Sensors, from+i)))
		}
	}
	body := map[string]any{"@odata.id": Sensors, "Members": members, "Members@odata.count": len(e.modern)}
	if end < len(e.modern) {
		q.Set("$skip", strconv.Itoa(end))
		body["Members@odata.nextLink"] = Sensors + "?" + q.Encode()
	}
	answer(w, 200, body)
	return true
}

// Instead replaces the answer at a path, or at a path with its query; nil restores it. The path "" replaces all answers.
func (e *Emulator) Instead(path string, h http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.instead[path] = h
}

// Others returns the number of requests with another method than GET.
func (e *Emulator) Others() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.others
}

// Requests returns the number of requests.
func (e *Emulator) Requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.requests
}

func (e *Emulator) override(r *http.Request) http.HandlerFunc {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests++
	if r.Method != http.MethodGet {
		e.others++
	}
	if h := e.instead[r.URL.RequestURI()]; h != nil {
		return h
	}
	if h := e.instead[r.URL.Path]; h != nil {
		return h
	}
	return e.instead[""]
}

func id(path string) map[string]any { return map[string]any{"@odata.id": path} }

// evidence answers requests for the event log and the sensors (LogService v1_4_0, LogEntry v1_15_0, Thermal v1_7_1, Power v1_7_1); false
// for other paths.
func (e *Emulator) evidence(w http.ResponseWriter, r *http.Request) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.modern != nil && strings.HasPrefix(r.URL.Path, Chassis) {
		return e.collection(w, r)
	}
	switch r.URL.Path {
	case logServices:
		answer(w, 200, map[string]any{"@odata.id": logServices, "Members": []any{id(logService)}, "Members@odata.count": 1})
	case logService:
		answer(w, 200, map[string]any{"@odata.id": logService, "Id": "SEL", "Name": "System Event Log", "Entries": id(Entries)})
	case Entries:
		from, _ := strconv.Atoi(r.URL.Query().Get("$skip"))
		from = max(0, min(from, len(e.log)))
		end := min(from+PageSize, len(e.log))
		members := []any{}
		entries := slices.Clone(e.log)
		if e.newest {
			slices.Reverse(entries)
		}
		for _, x := range entries[from:end] {
			members = append(members, map[string]any{"@odata.id": Entries + "/" + x.ID, "Id": x.ID, "EntryType": "SEL", "Created": x.Created,
				"Severity": x.Severity, "Message": x.Message})
		}
		body := map[string]any{"@odata.id": Entries, "Members": members, "Members@odata.count": len(e.log)}
		if end < len(e.log) {
			body["Members@odata.nextLink"] = fmt.Sprintf("%s?$skip=%d", Entries, end)
		}
		answer(w, 200, body)
	case Chassis + "/Thermal":
		var all []any
		for _, s := range e.sensors {
			all = append(all, map[string]any{"Name": s.Name, "ReadingCelsius": s.Celsius, "Status": map[string]any{"Health": s.Health}})
		}
		answer(w, 200, map[string]any{"@odata.id": r.URL.Path, "Id": "Thermal", "Temperatures": all})
	case Chassis + "/Power":
		answer(w, 200, map[string]any{"@odata.id": r.URL.Path, "Id": "Power", "PowerSupplies": []any{
			map[string]any{"Name": "PSU 1", "LineInputVoltage": 230.4, "Status": map[string]any{"Health": "OK"}},
			map[string]any{"Name": "PSU 2", "LineInputVoltage": 0, "Status": map[string]any{"Health": "Critical"}}}})
	default:
		return false
	}
	return true
}
