package process

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/storage"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/lofamo/lofamo/internal/executor/controller"
)

// goodbyeTime is the timeout for closing a look's session.
const goodbyeTime = time.Second

// maxSensors bounds the analog sensors that a look reads over IPMI, and the members of a page over Redfish.
const maxSensors = 256

// readIPMI reads the power state with the privilege USER, and in a full look the event log and sensors. Only a failure to read
// the power state is an error: some controllers have no event log.
func (p *controllerPlace) readIPMI(ctx context.Context, password string, full bool) (controller.Answer, error) {
	host, port, err := net.SplitHostPort(p.Address)
	if err != nil {
		return controller.Answer{}, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return controller.Answer{}, err
	}
	c, err := client.NewClient(bracketed(host), n, p.Username, password)
	if err != nil {
		return controller.Answer{}, err
	}
	suites := cipherSuites()
	if p.CipherSuite != 0 {
		suites = []types.CipherSuiteID{types.CipherSuiteID(p.CipherSuite)} //nolint:gosec // 3 or 17
	}
	checked(c).WithTimeout(packetTime).WithRetry(1).WithMaxPrivilegeLevel(types.PrivilegeLevelUser).WithCipherSuiteID(suites...)
	end, err := openIPMI(ctx, c, goodbyeTime)
	if err != nil {
		return controller.Answer{}, err
	}
	defer end()
	s, err := c.GetChassisStatus(ctx)
	if err != nil {
		return controller.Answer{}, err
	}
	a := controller.Answer{Finding: controller.Off}
	if s.PowerIsOn {
		a.Finding = controller.On
	}
	switch {
	case s.PowerFault:
		a.Health, a.Detail = controller.Critical, "it reports a fault of the main power"
	case s.PowerOverload:
		a.Health, a.Detail = controller.Critical, "it reports a power overload"
	}
	if full {
		a.Log = p.readSEL(ctx, c)
		a.Sensors = sensorLines(ctx, c.GetSensorsStream(ctx))
	}
	return a, nil
}

// bracketed returns a host as the library wants it, which appends the port: an IPv6 address in brackets.
func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// readSEL returns the entries of the event log since the last look, as newEntries does.
func (p *controllerPlace) readSEL(ctx context.Context, c *client.Client) []string {
	return p.newEntries(func(id uint16) (*storage.GetSELEntryResponse, error) {
		resp := &storage.GetSELEntryResponse{}
		return resp, c.Exchange(ctx, &storage.GetSELEntryRequest{RecordID: id, ReadBytes: 0xff}, resp)
	})
}

// newEntries returns the entries of the event log since the last look. Of more than 2·MaxLines it returns the oldest and the newest. At the
// first look it returns the last entry. If the controller does not answer, the rest follows at the next look.
func (p *controllerPlace) newEntries(get func(id uint16) (*storage.GetSELEntryResponse, error)) []string {
	const last = 0xffff
	next := uint16(last)
	if p.last != 0 {
		e, err := get(p.last)
		switch {
		case err == nil && e.NextRecordID == last: // nothing new
			return nil
		case err == nil:
			next = e.NextRecordID
		case !answered(err): // the record is probably still there, and so are those after it
			return nil
		}
	} else if p.empty {
		next = 0 // the first entry
	}
	var out []string
	for range 2 * controller.MaxLines { // a controller that lies may go in circles
		e, err := get(next)
		if next == last && absent(err) {
			p.last, p.empty = 0, true
		}
		if err != nil {
			break
		}
		record, err := types.ParseSEL(e.Data)
		if err != nil || record.RecordID == 0 {
			break
		}
		out = append(out, selText(record))
		p.last = record.RecordID
		if e.NextRecordID == last || next == last || e.NextRecordID == next {
			break
		}
		next = e.NextRecordID
	}
	if len(out) == 2*controller.MaxLines { // more may follow: go on from the newest
		if e, err := get(last); err == nil {
			if record, err := types.ParseSEL(e.Data); err == nil && record.RecordID != 0 && record.RecordID != p.last {
				out = append(out, selText(record))
				p.last = record.RecordID
			}
		}
	}
	return out
}

// absent reports whether a controller answers that it has no such record.
func absent(err error) bool { return answeredWith(err, types.CodeRequestedDataNotPresent) }

// answered reports whether an error is an answer of the controller.
func answered(err error) bool {
	var e *types.ResponseError
	return errors.As(err, &e)
}

func selText(r *types.SEL) string {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case r.Standard != nil:
		s := r.Standard
		return fmt.Sprintf("%s %s, sensor %#02x: %s (%s)", at(s.Timestamp), s.SensorType, uint8(s.SensorNumber), s.EventString(), s.EventDir)
	case r.OEMTimestamped != nil:
		return fmt.Sprintf("%s entry of the vendor, type %#02x", at(r.OEMTimestamped.Timestamp), uint8(r.RecordType))
	default:
		return fmt.Sprintf("entry of the vendor, type %#02x", uint8(r.RecordType))
	}
}

// sensorLines returns analog sensors of a stream, those out of their thresholds first. If the stream ends early, a line states the cause.
func sensorLines(ctx context.Context, sensors iter.Seq[*types.Result[types.Sensor]]) []string {
	var l sensorList
	began := false
	for r := range sensors {
		if r == nil {
			continue
		}
		if r.Err != nil {
			if began || !withoutSensors(r.Err) {
				l.err = r.Err
			}
			break
		}
		began = true
		s := r.Ok
		if s == nil || !s.HasAnalogReading || !s.IsReadingValid() {
			continue
		}
		if len(l.good)+len(l.bad) == maxSensors {
			l.err = errMore
			break
		}
		text := fmt.Sprintf("%s %.4g %s: %s", controller.Clean(s.Name), s.Value, s.SensorUnit, thresholdWords(s.Status()))
		if s.Status() == "ok" {
			l.good = append(l.good, text)
		} else {
			l.bad = append(l.bad, text)
		}
	}
	if l.err == nil {
		l.err = ctx.Err() // the stream states no error when ctx ends
	}
	return l.lines()
}

// withoutSensors reports whether a controller answers that it has no list of sensors.
func withoutSensors(err error) bool {
	return answeredWith(err, types.CodeInvalidCommand, types.CodeRequestedDataNotPresent, types.CodeIllegalCommand)
}

// thresholdWords returns a sensor's state for people: the library's is the abbreviation of a threshold, such as ucr.
func thresholdWords(status string) string {
	if len(status) != 3 {
		return status
	}
	side := map[byte]string{'u': "above", 'l': "below"}[status[0]]
	threshold := map[string]string{"nc": "non-critical", "cr": "critical", "nr": "non-recoverable"}[status[1:]]
	if side == "" || threshold == "" {
		return status
	}
	return side + " its " + threshold + " threshold"
}

// unanswered reports whether a controller has not answered over IPMI. The library keeps the error of a lost packet private.
func unanswered(err error) bool {
	return strings.Contains(err.Error(), "no datagram matched before deadline")
}

func first(in []string) []string { return in[:min(len(in), controller.MaxLines)] }

var errNoPower = errors.New("no power state in its answer")
