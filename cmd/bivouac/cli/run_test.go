package cli

import (
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// A turn that goes on with a session is about the folder that the session was given,
// and of a session that began elsewhere nobody guesses one.
func TestTurnRemembersItsFolder(t *testing.T) {
	a := &app{config: t.TempDir()}
	turn := func(id, session, dir string) {
		t.Helper()
		if err := a.rememberDir(&apiv1.Turn{Id: id, SessionId: session}, dir); err != nil {
			t.Fatal(err)
		}
	}
	turn("trn_1", "ses_1", "/home/me/repo")
	turn("trn_2", "ses_1", "")
	turn("trn_3", "ses_1", "/home/me/other")
	turn("trn_4", "ses_1", "")
	turn("trn_5", "ses_2", "")
	for id, want := range map[string]string{"trn_1": "/home/me/repo", "trn_2": "/home/me/repo", "trn_3": "/home/me/other", "trn_4": "/home/me/other"} {
		if dir, err := a.rememberedDir(id); err != nil || dir != want {
			t.Errorf("%s is about %q, %v; want %s", id, dir, err, want)
		}
	}
	if dir, err := a.rememberedDir("trn_5"); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a session of another login: %q, %v", dir, err)
	}
}
