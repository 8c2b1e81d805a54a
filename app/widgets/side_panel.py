"""Columns of pages under tabs: what is known about the run, on the right; its text and its race, in the middle."""

from __future__ import annotations

from PySide6.QtWidgets import QTabWidget, QWidget


class SidePanel(QTabWidget):
    """Pages under tabs; each page is a panel that stands for itself."""

    def __init__(self, name: str = "side", title: str = "About this run") -> None:
        """Name the column, as sidePanel, and its tabs, as sideTabs; the title is for assistive technology."""
        super().__init__()
        self.setObjectName(f"{name}Panel")
        self.setAccessibleName(title)
        self.setProperty("role", "pages")
        self.setDocumentMode(True)
        self.tabBar().setDrawBase(False)
        self.tabBar().setExpanding(False)
        self.tabBar().setObjectName(f"{name}Tabs")
        self.tabBar().setAccessibleName(f"Pages: {title}")

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
