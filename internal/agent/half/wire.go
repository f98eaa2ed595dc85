package half

import (
	"errors"
	"log/slog"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// SealAnswer signs the answer to a challenge.
func SealAnswer(nonce []byte, who fault.Origin, e fault.Epoch, s servicenet.Signer) ([]byte, error) {
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
		Nonce: nonce, Node: string(who.Node), Half: lofamov1.Half(who.Half), Epoch: uint64(e),
	}}}, s)
}

// SendMail passes an envelope to the other half. It returns an error when that is dead or does not empty its mailbox.
// The message is then lost, and its origin retransmits it, unless the caller keeps it. Messages back leave room for
// all others.
func SendMail(box *mailbox.Box, m halfcore.Relay, log *slog.Logger) error {
	b, err := AppendMail(nil, Monotonic(), m)
	if err == nil {
		send := box.Send
		if m.Kind == halfcore.RelayBack {
			send = box.SendSpare
		}
		for range failpoint.Packet(failpoint.MailSend, b) {
			err = send(mailbox.Message{Type: mailbox.Envelope, Payload: b})
		}
	}
	if err != nil && !errors.Is(err, mailbox.ErrAbsent) {
		log.Debug("message not passed to the other half", "err", err)
	}
	return err
}

// The most datagrams a second that a service interface and the gossip read, from any sender: many times the rate of
// supervisors and members, and a fifth of one core. A half under SCHED_FIFO that is kept reading would be late for
// its watchdogs, and then be killed by its limit.
const (
	MaxDatagrams = 2000
	MaxGossip    = 500
	// MaxStrangers is the number of datagrams per second that each of these sockets reads from strangers: a supervisor may
	// answer from an address that is not configured, and a member may still be unknown.
	MaxStrangers = 200
)

// PostAgain is the time between two attempts: the DNP half empties its mailbox at once, when it runs.
const PostAgain = 2 * time.Millisecond
