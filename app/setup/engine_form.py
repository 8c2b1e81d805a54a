"""Chooses where runs are carried out: on this machine, or on a server whose address is kept by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, Qt, Signal, Slot
from PySide6.QtWidgets import QDialog, QLineEdit, QWidget

from app.jobs import Job, Jobs
from app.setup.model_picker import ModelCombo
from app.widgets.fields import boxed, column, labelled, line_edit, plain_tip, push_button, row, set_flag, wrapped_label
from core.engines.address import Address, keep_key
from core.errors import ServerError, ServerRefusedError

if TYPE_CHECKING:
    from core.engines.server import Server

HERE = "This machine"
ENGINE_HELP = "Where the text is written: by models on this machine, or by a vLLM, SGLang or llama.cpp server."
OWN = "Drafts, K, device and precision are set when the server is started."
ADDRESS_HELP = "For example, http://127.0.0.1:8000. Only this address is contacted."
KEY_HELP = (
    "Sent to this address only. Kept in the system's keyring, or, without one, until Outrider closes. Leave it empty "
    "to use the stored key, or none."
)
NO_PASSWORDS = "A password in an address would be kept in a file. Leave it out, and enter an API key instead."


def parse_address(text: str) -> Address:
    """The address that was typed.

    Raises:
        ServerRefusedError: it is none, or holds a password.
    """
    address = Address.parse(text)
    if address.login is not None:
        raise ServerRefusedError(NO_PASSWORDS)
    return address


def _identified(job: Job, url: str, key: str | None = None) -> Server:
    from core.engines.server import identify  # Late: most people need no HTTP, which takes time to import.

    return identify(url, key, job.check)


class ServerDialog(QDialog):
    """Asks for a server's address, name and key, and tests them.

    Signals:
        added: the address and the name; the key, if there is one, is kept by then.
    """

    added = Signal(str, str)

    def __init__(self, parent: QWidget, jobs: Jobs) -> None:
        super().__init__(parent)
        self.setObjectName("serverDialog")
        self.setWindowTitle("Add server")
        self._jobs = jobs
        self._job: Job | None = None
        self.address = line_edit("serverAddressEdit", "http://127.0.0.1:8000")
        self.name = line_edit("serverNameEdit", "the address")
        self.key = line_edit("serverKeyEdit", "none")
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        self.test_button = push_button(
            "Test", "testServerButton", "Check which server answers at this address", self._on_test
        )
        self.add_button = push_button("Add", "addServerButton", "Keep this server, and choose it", self._on_add)
        self.add_button.setProperty("role", "primary")
        self.add_button.setDefault(True)
        self.cancel_button = push_button("Cancel", "cancelServerButton", "", self.reject)
        self.found = wrapped_label("serverFound", "hint")
        self.found.setMinimumHeight(3 * self.found.fontMetrics().lineSpacing())
        self.found.setAlignment(Qt.AlignmentFlag.AlignTop)
        fields = column(
            labelled("Address", self.address, ADDRESS_HELP),
            labelled("Name", self.name, "Its name in the list"),
            labelled("API key", self.key, KEY_HELP),
            self.found,
            row(self.test_button, None, self.cancel_button, self.add_button),
            spacing=12,
        )
        boxed(fields, self, margins=(20, 16, 20, 16))
        self.setMinimumWidth(440)
        for edit in (self.address, self.key):
            edit.textChanged.connect(self._on_edited)
        self._on_edited()

    def _say(self, text: str, *, is_problem: bool = False) -> None:
        self.found.setText(text)
        set_flag(self.found, "role", "problem" if is_problem else "hint")

    def _typed(self) -> Address | None:
        try:
            return parse_address(self.address.text())
        except ServerError as error:
            self._say(str(error), is_problem=True)
            return None

    @Slot()
    def _on_edited(self) -> None:
        self._leave()
        self._say("vLLM, SGLang and llama-server are identified by their responses.")
        for button in (self.test_button, self.add_button):
            button.setEnabled(bool(self.address.text().strip()))

    @Slot()
    def _on_test(self) -> None:
        if (address := self._typed()) is None:
            return
        self._leave()
        self._say(f"Contacting {address}…")
        key = self.key.text().strip()
        self._job = self._jobs.submit(
            lambda job: _identified(job, address.url, key or None),
            then=lambda server: self._say(server.text),
            failed=partial(self._say, is_problem=True),
            what="The server could not be tested",
        )

    @Slot()
    def _on_add(self) -> None:
        if (address := self._typed()) is None:
            return
        self._leave()
        key = self.key.text().strip()
        self._job = self._jobs.submit(
            lambda _job: keep_key(address, key) if key else None,  # A keyring may ask for its own password first.
            then=lambda _: self._add(address),
            failed=partial(self._say, is_problem=True),
            what="The key could not be kept",
        )

    def _add(self, address: Address) -> None:
        self.key.clear()
        self.added.emit(address.url, self.name.text().strip() or address.url.partition("://")[2])
        self.accept()

    def _leave(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def done(self, result: int) -> None:
        """Close, and forget a key that was typed."""
        self._leave()
        self.key.clear()
        super().done(result)


class EngineForm(QWidget):
    """The engine's dropdown, and a line about the server that was chosen.

    Signals:
        changed: another engine was chosen, or more is known about it.

    Attributes:
        servers: the names of the kept servers, by address.
        url: the chosen server's address; empty for this machine.
        server: what answers there; None until it is known.
    """

    changed = Signal()

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs
        self._job: Job | None = None
        self._failure = ""
        self.servers: dict[str, str] = {}
        self.url = ""
        self.server: Server | None = None
        self.combo = ModelCombo("engineCombo")
        self.note = wrapped_label("engineNote", "hint")
        self.dialog: ServerDialog | None = None
        boxed(column(labelled("Engine", self.combo, ENGINE_HELP), self.note), self)
        self.combo.activated.connect(self._on_activated)
        self._show()

    def choose(self, url: str, name: str = "") -> None:
        """Choose an engine by its address, empty for this machine; a server that isn't in the list is added to it."""
        if url:
            self.servers[url] = name or self.servers.get(url) or url.partition("://")[2]
        if url != self.url or name:
            self._ask(url)
        self._show()

    def problem(self) -> str:
        """Why nothing can run on the chosen engine yet; empty if something can."""
        if not self.url or self.server is not None:
            return ""
        return self._failure or f"Identifying the server at {self.url}…"

    def drafting(self) -> str:
        """How the server drafts, in a sentence; empty on this machine."""
        if self.server is None:
            return ""
        return f"{self.server.models[0] if self.server.is_router else 'The server'} {self.server.speculation.text}."

    def _ask(self, url: str) -> None:
        if self._job is not None:
            self._job.cancel()
        self.url, self.server, self._failure = url, None, ""
        if url:
            self._job = self._jobs.submit(
                lambda job: _identified(job, url),
                then=self.learn,
                failed=partial(self.learn, None),
                what=f"{url} could not be reached",
            )

    def learn(self, server: Server | None, failure: str = "") -> None:
        """Take over what the chosen server is, or why it can't be used."""
        self.server, self._failure = server, failure
        self._show()
        self.changed.emit()

    def _show(self) -> None:
        with QSignalBlocker(self.combo):
            self.combo.clear()
            self.combo.addItem(HERE, "")
            for url, name in self.servers.items():
                self.combo.addItem(name, url)
                self.combo.setItemData(self.combo.count() - 1, plain_tip(url), Qt.ItemDataRole.ToolTipRole)
            self.combo.insertSeparator(self.combo.count())
            self.combo.addItem("Add server…")
            if self.url:
                self.combo.addItem("Test again", self._again)
                self.combo.addItem(f"Remove {self.servers[self.url]}", self._remove)
            self.combo.setCurrentIndex(self.combo.findData(self.url))
        self.combo.setToolTip(plain_tip(self.server.text if self.server is not None else ENGINE_HELP))
        self.note.setText(f"{self.drafting()} {OWN}" if self.server is not None else "")
        self.note.setVisible(self.server is not None)
        set_flag(self.combo, "invalid", bool(self._failure))  # The reason stands beside Run.

    @Slot(int)
    def _on_activated(self, index: int) -> None:
        data, was_open = self.combo.itemData(index), self.combo.is_open
        self._show()  # The entries below the line aren't choices.
        if isinstance(data, str):
            self.choose(data)
        elif not was_open:
            return  # A key on the closed list would act immediately.
        elif data is None:
            self.add()
        else:
            data()
        self.changed.emit()

    def add(self) -> None:
        """Open the dialog that adds a server."""
        if self.dialog is None:
            self.dialog = ServerDialog(self.window(), self._jobs)
            self.dialog.added.connect(self._on_added)
        self.dialog.open()
        self.dialog.address.setFocus()

    @Slot(str, str)
    def _on_added(self, url: str, name: str) -> None:
        self.choose(url, name)
        self.changed.emit()

    def _again(self) -> None:
        self._ask(self.url)
        self._show()

    def _remove(self) -> None:
        """Forget the chosen server, and its key."""
        self.servers.pop(self.url)
        try:
            address = parse_address(self.url)
        except ServerRefusedError:
            pass  # An address that is refused has no key.
        else:
            self._jobs.submit(lambda _job: keep_key(address, ""), must_finish=True)
        self.choose("")
