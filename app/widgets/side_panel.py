"""Columns of pages under tabs: what is known about the run, on the right; its text and its race, in the middle."""

from __future__ import annotations

from PySide6.QtWidgets import QTabWidget, QWidget


class SidePanel(QTabWidget):
    """Pages under tabs; each page is a panel that stands for itself."""

    def __init__(self, object_name: str = "sidePanel", name: str = "About this run") -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(name)
        self.setProperty("role", "pages")
        self.setDocumentMode(True)
        self.tabBar().setDrawBase(False)
        self.tabBar().setExpanding(False)
        self.tabBar().setObjectName("sideTabs")
        self.tabBar().setAccessibleName("Pages about this run")

    def add_page(self, title: str, page: QWidget, help_text: str) -> None:
        """Add a page behind the others.

        Args:
            title: one or two short words; all tabs must fit into 340 pixels.
            page: the panel.
            help_text: what it shows, in a sentence.
        """
        self.setTabToolTip(self.addTab(page, title), help_text)

    def title(self) -> str:
        """The page at the front, by its title."""
        return self.tabText(self.currentIndex())

    def show_title(self, title: str) -> None:
        """Bring the page of this title to the front, if there is one."""
        for index in range(self.count()):
            if self.tabText(index) == title:
                self.setCurrentIndex(index)

    def show_page(self, page: QWidget) -> None:
        """Bring a page to the front."""
        self.setCurrentWidget(page)
