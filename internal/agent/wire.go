package agent

import (
	"errors"
	"log/slog"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/relay"
	"github.com/lofamo/lofamo/internal/agent/torusrail"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// sealAnswer signs the answer to a challenge.
func sealAnswer(nonce []byte, who fault.Origin, e fault.Epoch, s servicenet.Signer) ([]byte, error) {
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
		Nonce: nonce, Node: string(who.Node), Half: lofamov1.Half(who.Half), Epoch: uint64(e),
	}}}, s)
}

// sendMail passes an envelope to the other half, and says when that is dead or does not empty its mailbox: then the message
// is lost, and its origin sends it again, unless somebody holds it. Messages back leave room for all others.
func sendMail(box *mailbox.Box, m relay.Message, log *slog.Logger) error {
	b, err := torusrail.AppendMail(nil, monotonic(), m)
	if err == nil {
		send := box.Send
		if m.Kind == relay.Back {
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
