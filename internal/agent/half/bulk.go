package half

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/bundle"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/program"
)

// ObjectBundle is the name by which supervisors ask for a diagnostic bundle.
const ObjectBundle = "bundle"

// mailboxBurst is the number of chunks that may go into the other half's mailbox at once. The kernel may hold no more
// than 10 datagrams there (net.unix.max_dgram_qlen), and reports need room too.
const mailboxBurst = 4

// dnpDirectRate bounds the chunks a second that the DNP half sends directly: all of them pass through the mailbox of
// its host half.
const dnpDirectRate = 1000

// NewBulk makes the server of a half's large objects.
func (c *Common) NewBulk(ways bundle.Ways, history *bundle.History, parts []bundle.Part) (*bundle.Server, error) {
	cfg := bundle.DefaultServerConfig()
	cfg.Origin, cfg.Dir, cfg.Ways, cfg.Logger = c.Origin(), c.Config.StateDir, ways, c.Log
	cfg.Sender.TorusBurst = mailboxBurst
	if c.Half == fault.HalfDNP {
		cfg.Sender.DirectRate, cfg.Sender.DirectBurst = dnpDirectRate, mailboxBurst
	}
	cfg.Objects = map[string]bundle.Object{ObjectBundle: {
		Name: func(now time.Time) string { return bundle.FileName(c.Origin(), now) },
		Gather: func(ctx context.Context, maxSize uint64, w io.Writer) error {
			return bundle.Gather(ctx, c.bundleConfig(history, parts), maxSize, w)
		},
	}}
	return bundle.NewServer(cfg)
}

func (c *Common) bundleConfig(history *bundle.History, parts []bundle.Part) bundle.Config {
	b := bundle.DefaultConfig(c.Origin())
	b.Version, b.Proc = program.Build(), c.Config.Sensors.Procfs
	b.Logs = bundle.OwnLogs("/proc") // of this process, even if the sensors read another tree
	b.Parts = append(bundle.Registers(c.StatePath(RegisterFile), c.Around.Load().Links),
		bundle.Part{Name: "register-history.txt", Make: history.Text},
		// The configuration names key files, and holds no key.
		bundle.Part{Name: "config.yaml", Make: func() ([]byte, error) { return yaml.Marshal(c.Config) }})
	b.Parts = append(b.Parts, parts...)
	return b
}

// DeliveryPart returns the part of a diagnostic bundle that holds the delivery status, as JSON.
func DeliveryPart(get func() *lofamov1.DeliveryStatus) bundle.Part {
	return bundle.Part{Name: "delivery.json", Make: func() ([]byte, error) {
		return protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true, Multiline: true}.Marshal(get())
	}}
}

// SealAnnounce returns the signed announcement of a bulk transfer, or nil after it has logged an error.
func (c *Common) SealAnnounce(m *lofamov1.BulkAnnounce) []byte {
	e, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_BulkAnnounce{BulkAnnounce: m}}, c.Signer)
	if err != nil {
		c.Log.Error("announcement not sent", "err", err)
		return nil
	}
	return e
}

// Back is a message to the gateway of that name.
func (c *Common) Back(via string, packet []byte) (halfcore.Relay, bool) {
	dst, ok := c.Around.Load().At(fault.NodeID(via))
	if !ok || len(packet) > halfcore.MaxRelayEnvelope {
		c.Log.Debug("message back not sent", "via", via, "bytes", len(packet))
		return halfcore.Relay{}, false
	}
	return halfcore.Relay{Kind: halfcore.RelayBack, Limit: c.MaxHops(), Dst: dst, Envelope: packet}, true
}

// TextWriter keeps a handler's response.
type TextWriter struct {
	bytes.Buffer
	header http.Header
}

// Header implements http.ResponseWriter.
func (w *TextWriter) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *TextWriter) WriteHeader(int) {}
